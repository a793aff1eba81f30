"""The words of a model card on how the model was made: data, rewards, recipe and versions, from the recipe and the manifests."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import toolkit
from toolkit.engine.source import is_hub_name
from toolkit.hub.markdown import fenced, inline, link, table
from toolkit.hubapi import portable
from toolkit.tasks import gsm8k, tldr

if TYPE_CHECKING:
    from toolkit.recipe import Recipe

DATASETS = {"gsm8k": gsm8k.HUB_NAME, "tldr": tldr.HUB_NAME}


def is_on_hub(recipe: Recipe) -> bool:
    """Whether the base model is one of the Hub's."""
    return is_hub_name(recipe.model.source)


def hub_datasets(recipe: Recipe) -> list[str]:
    """The data sets of the Hub that the rows come from: none where the recipe names files."""
    task: Any = recipe.task
    if task.name == "table":
        return [task.dataset] if task.dataset else []
    return [DATASETS[task.name]] if task.name in DATASETS and not task.train_file else []


def training(recipe: Recipe, run: Mapping[str, Any] | None, base: str) -> str:
    """Data, rewards with their weights, and the whole recipe."""
    parts = [
        "## Training",
        f"Base model: {inline(base)}{_revision(recipe)}.",
        _data(recipe, run),
        "Rewards; the total is the weighted sum:",
    ]
    parts.append(
        table(("reward", "weight", "what it pays", "settings"), [_reward(reward) for reward in recipe.rewards])
    )
    if recipe.warmup:
        parts.append(f"Before that, {recipe.warmup.max_steps} supervised steps on worked solutions (warm-up).")
    grpo, model = recipe.grpo, recipe.model
    trained = "all weights trained" if model.full_finetuning else f"LoRA of rank {model.lora.r}"
    parts.append(
        f"{grpo.max_steps} steps of {grpo.prompts_per_step} prompts with {grpo.num_generations} completions each, "
        f"learning rate {grpo.learning_rate:g}, {trained}, seed {recipe.seed}."
    )
    parts += ["<details><summary>The recipe</summary>", fenced(recipe_yaml(recipe), "yaml"), "</details>"]
    return "\n\n".join(parts)


def _revision(recipe: Recipe) -> str:
    return f", revision {inline(recipe.model.revision)}" if recipe.model.revision else ""


def _data(recipe: Recipe, run: Mapping[str, Any] | None) -> str:
    task: Any = recipe.task
    on_hub = [link(name, f"https://huggingface.co/datasets/{name}") for name in hub_datasets(recipe)]
    own = {"reasoning_gym": f"reasoning-gym, {getattr(task, 'dataset', '')}"}.get(
        task.name, f"task {task.name}, own rows"
    )
    text = f"Data: {on_hub[0] if on_hub else inline(own)}."
    if run is None:
        return text
    train, heldout = run["data"]["train"], run["data"]["heldout"]
    return (
        f"{text} {train['rows']} rows to train on (SHA-256 `{train['sha256']}`), "
        f"{heldout['rows']} held out (`{heldout['sha256']}`)."
    )


def _reward(reward: Any) -> tuple[str, str, str, str]:
    settings = portable(reward.model_dump(mode="json", exclude_defaults=True, exclude={"name", "weight"}))
    said = json.dumps(settings, ensure_ascii=False)[1:-1]
    pays = (type(reward).__doc__ or "").strip().split("\n")[0]
    return inline(reward.name), f"{reward.weight:g}", inline(pays), inline(said) or "–"


def recipe_yaml(recipe: Recipe) -> str:
    """The recipe as a file that trains this again: what differs from the defaults, and no path of this machine."""
    from ruamel.yaml import YAML

    plain = recipe.model_dump(mode="json", exclude_defaults=True)
    plain["task"] = {"name": recipe.task.name, **plain.get("task", {})}
    plain["rewards"] = [
        {"name": reward.name, **reward.model_dump(mode="json", exclude_defaults=True)} for reward in recipe.rewards
    ]
    plain.pop("hub", None)
    yaml, text = YAML(), io.StringIO()
    yaml.width = 120
    yaml.dump(portable(plain), text)
    return text.getvalue()


def versions(run: Mapping[str, Any] | None, manifest: Mapping[str, Any]) -> str:
    """Everything that made it, so that it can be made again."""
    made = {"grpo-toolkit": (run or {}).get("toolkit", toolkit.__version__)}
    if commit := (run or {}).get("git_commit"):
        made["grpo-toolkit's commit"] = commit
    made |= (run or {}).get("versions", {}) | manifest["versions"]
    return "## Versions\n\n" + ", ".join(f"{inline(name)} {inline(version)}" for name, version in made.items()) + "."
