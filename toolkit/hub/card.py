"""The model card of a repository: what the model is, what it scores, what was proven, and what its licence asks. It measures nothing.

Everything that a file, a recipe or a model says goes through `markdown` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit.hub import describe, scores
from toolkit.hub.files import Place, Proof
from toolkit.hub.markdown import inline, link, table, visible
from toolkit.hub.usage import usage
from toolkit.hubapi import Licence

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

HOME = "https://huggingface.co"
NOT_VERIFIED = "not-verified"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card is made of: the records of a run and its export, as they may leave this machine."""

    recipe: Recipe
    manifest: dict[str, Any]
    proof: Proof
    licence: Licence
    places: tuple[Place, ...]
    run: dict[str, Any] | None
    """manifest.json of the run; None where the run is not on this machine."""
    evaluation: dict[str, Any] | None
    """eval.json of the run; None where it was not evaluated, or is not on this machine."""
    has_licence_text: bool
    has_system_role: bool
    """Whether the model's chat template takes a system message."""

    @property
    def base(self) -> str:
        """The base model as a reader knows it: its name on the Hub, else that of its file or folder."""
        source = self.recipe.model.source
        return source if describe.is_on_hub(self.recipe) else source.rstrip("/").rpartition("/")[2]


def card_text(facts: Facts, place: Place) -> str:
    """README.md for this repository."""
    parts = [
        _warning(facts.proof),
        f"# {inline(place.repo.split('/')[1])}",
        _introduction(facts),
        scores.section(facts.evaluation),
        _files(facts, place),
        usage(
            facts.recipe,
            facts.manifest,
            place,
            has_system_role=facts.has_system_role,
            recommended=(facts.proof.certificate or {}).get("recommended"),
        ),
        describe.training(facts.recipe, facts.run, facts.base),
        _certificate(facts),
        _licence(facts),
        describe.versions(facts.run, facts.manifest),
    ]
    return f"---\n{_metadata(facts, place)}\n---\n\n" + "\n\n".join(part for part in parts if part) + "\n"


def _metadata(facts: Facts, place: Place) -> str:
    """What the Hub indexes. Only ids that exist there: a base model or data set of this machine is in the text alone."""
    from huggingface_hub import ModelCardData

    licence = facts.licence
    named: dict[str, Any] = {"license_name": visible(licence.name)} if licence.id == "other" else {}
    library, relation = {
        frozenset({"adapter"}): ("peft", "adapter"),
        frozenset({"gguf"}): ("gguf", "quantized"),
    }.get(place.parts, ("transformers", "finetune"))
    on_hub = describe.is_on_hub(facts.recipe)
    data = ModelCardData(
        license=licence.id,
        base_model=facts.recipe.model.source if on_hub else None,
        base_model_relation=relation if on_hub else None,
        datasets=describe.hub_datasets(facts.recipe) or None,
        library_name=library,
        pipeline_tag="text-generation",
        tags=["grpo", "reinforcement-learning", *(["gguf"] if "gguf" in place.parts else []),
              *([NOT_VERIFIED] if facts.proof.problems else [])],
        **named,
    )  # fmt: skip
    return data.to_yaml().strip()


def _warning(proof: Proof) -> str:
    if not proof.problems:
        return ""
    lines = [
        "> [!CAUTION]",
        "> **This model is not verified. It was pushed with `--force`, without a passing certificate for these files.**",
        "> Nothing shows that they answer as the model that was trained.",
        *(f"> Why: {inline(problem)}." for problem in proof.problems),
    ]
    return "\n".join(lines)


def _introduction(facts: Facts) -> str:
    base = link(facts.base, f"{HOME}/{facts.base}") if describe.is_on_hub(facts.recipe) else inline(facts.base)
    text = f"{base}, fine-tuned with reinforcement learning (GRPO)."
    if facts.recipe.description:
        text += f" Its recipe says: {inline(facts.recipe.description)}"
    shown = f"**{facts.licence.shown}**\n\n" if facts.licence.shown else ""
    return shown + text


def _files(facts: Facts, place: Place) -> str:
    """The table of GGUF files where this repository holds them, and where the other parts are."""
    lines = ["## Files"]
    if "merged" in place.parts:
        width = "32" if facts.recipe.export.is_wide else "16"
        lines.append(
            f"The merged model in {width} bits lies at the root: `transformers` and vLLM open this repository as it is."
        )
    if "adapter" in place.parts:
        where = "is this repository" if place.parts == {"adapter"} else "lies in `adapter/`"
        lora = " `--lora` of llama.cpp takes its GGUF file." if facts.manifest.get("lora") else ""
        lines.append(f"The LoRA adapter {where}: PEFT loads it onto the base model.{lora}")
    if "gguf" in place.parts and facts.manifest["files"]:
        lines.append(scores.quant_table(facts.manifest["files"], facts.proof))
        if imatrix := facts.manifest.get("imatrix"):
            lines.append(f"Quantised with an importance matrix from {imatrix['texts']} training prompts.")
    lines += [f"The export warned: {inline(warning)}." for warning in facts.manifest["warnings"]]
    for other in facts.places:
        if other.repo != place.repo:
            what = {"merged": "the merged model", "adapter": "the adapter", "gguf": "the GGUF files"}
            parts = " and ".join(words for part, words in what.items() if part in other.parts)
            lines.append(f"Elsewhere: {parts}, in {link(other.repo, f'{HOME}/{other.repo}')}.")
    return "\n\n".join(lines)


def _certificate(facts: Facts) -> str:
    """What was shown, in numbers, and of which bytes."""
    proof = facts.proof
    if proof.certificate is None:
        said = "There is none for these files."
    else:
        said = scores.certificate_summary(proof.certificate, facts.manifest)
    rows = [(inline(name), f"`{digest}`") for name, digest in sorted(proof.files.items())]
    named = "The files and the SHA-256 of their bytes, by their path in the export (`merged/` is the root of its repository):"
    hashes = "\n\n".join(
        ["<details><summary>SHA-256 of every file</summary>", named, table(("file", "SHA-256"), rows), "</details>"]
    )
    return f"## Certificate\n\n{said}\n\n{hashes}"


def _licence(facts: Facts) -> str:
    licence = facts.licence
    name = link(licence.name, licence.link) if licence.link else inline(licence.name)
    lines = ["## Licence"]
    if licence.name == "unknown":
        lines.append(
            "The base model states no licence that could be read here. Its own page says what may be done with this model."
        )
        return "\n\n".join(lines)
    guessed = " (by the base model's name: nothing here states it)" if licence.guessed else ""
    lines.append(
        f"A fine-tuned model keeps its base's licence: {name}{guessed}. This is a modified version of {inline(facts.base)}."
    )
    if licence.asks:
        lines.append("Whoever passes it on must, in plain words:\n\n" + "\n".join(f"- {ask}" for ask in licence.asks))
    if licence.notice:
        lines.append(f"> {licence.notice}")
    if licence.wants_copy and not facts.has_licence_text:
        lines.append(f"The licence's text is not in this repository; it stands at {licence.link}.")
    return "\n\n".join(lines)
