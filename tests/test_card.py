"""A model card says what the records say, and nothing that a file, a recipe or a model says becomes part of the page's markup."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from hub_export import REPO, certify, write_export
from toolkit.atomic import read_json
from toolkit.hub.card import Facts, card_text
from toolkit.hub.files import Place, places, proof_of
from toolkit.hub.markdown import fenced, inline
from toolkit.hubapi import Licence, portable
from toolkit.hubapi.licences import LICENCES, UNKNOWN, licence_called
from toolkit.recipe import load_recipe, load_resolved
from toolkit.rundir import ExportDir

EVIL = "<script>alert(1)</script> [x](http://evil.example) ![i](http://evil.example/p.png) `code` **b** | a | \u202e# x"
CI = [0.25, 0.75]
DATA = {"train": {"rows": 20, "sha256": "aa"}, "heldout": {"rows": 8, "sha256": "bb"}}


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return write_export(tmp_path / "a-20260101-120000")


def evaluation(*, graded: bool = True) -> dict[str, Any]:
    right = {"accuracy": 0.5, "ci95": CI, "lenient_accuracy": 0.6, "format_rate": 0.9} if graded else {}
    model = {**right, "reward": {"mean": 1.25, "ci95": [1.0, 1.5]}, "mean_tokens": 30.0}
    model["greedy"] = {**right, "reward": {"mean": 1.5, "ci95": [1.25, 1.75]}}
    change = {"reward": {"delta": 0.5, "ci95": [0.25, 0.75]}} | (
        {"delta": 0.125, "ci95": [0.1, 0.15]} if graded else {}
    )
    return {
        "n": 300, "samples": 4, "graded": graded, "models": {"base": model, "tuned": model},
        "differences": {"tuned-base": change}, "decoding": {"temperature": 1.0, "top_k": 0, "min_p": None, "seed": 3},
        "prompts_sha256": "ab12", "intervals": "95 %: bootstrap", "overlap": {"exact": 0, "folded": 0, "row_ids": []},
    }  # fmt: skip


def facts_of(export: Path, **changes: Any) -> Facts:
    folder = ExportDir(export)
    recipe, proof = load_resolved(folder.recipe).recipe, proof_of(folder)
    given: dict[str, Any] = {
        "recipe": recipe, "manifest": read_json(folder.manifest), "proof": proof, "licence": LICENCES["apache-2.0"],
        "places": tuple(places(recipe.hub, proof.files, merged=True)), "evaluation": evaluation(),
        "run": {"toolkit": "0.1.0", "versions": {"trl": "1.15.0"}, "data": DATA}, "has_licence_text": True,
        "has_system_role": True,
    }  # fmt: skip
    return Facts(**given | changes)


def card(export: Path, **changes: Any) -> str:
    facts = facts_of(export, **changes)
    return card_text(facts, facts.places[0])


def metadata(text: str) -> dict[str, Any]:
    from huggingface_hub import ModelCard

    return ModelCard(text).data.to_dict()


def page(text: str) -> str:
    """As a reader's browser gets it, from a renderer that lets HTML through and finds links by itself."""
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(body)


def test_it_says_what_the_records_say(export: Path) -> None:
    text = card(export)
    for said in (
        "| base model | 50.0% (25.0% to 75.0%) | 50.0% (25.0% to 75.0%) | 90.0% | 1.25 (1 to 1.5) |",
        "- this model against base model, the same rows compared: +12.5 points right, sampled (+10.0 to +15.0)",
        "n = 300 held-out rows, none of them among the rows that were trained on; 4 samples each (temperature 1.0, top_k 0, seed 3)",
        "| a-q8_0.gguf | q8_0 | 0 | 5 | 1.2e-04 | 0.998 | 9 of 16 | -6.2 (-12.5 to +3.0) | passed |",
        "| merged | 2 of 2 | passed |",
        "| correctness | 1 |",
        "20 rows to train on (SHA-256 `aa`), 8 held out (`bb`)",
        "[Apache License 2.0](https://www.apache.org/licenses/LICENSE-2.0)",
        "trl 1.15.0, llama.cpp 0c1e570",
    ):
        assert said in text, said
    assert proof_of(ExportDir(export)).files["a-f16.gguf"] in text
    assert metadata(text) == {
        "library_name": "transformers", "license": "apache-2.0", "pipeline_tag": "text-generation",
        "tags": ["grpo", "reinforcement-learning", "gguf"],
    }  # fmt: skip


def test_without_golds_it_compares_rewards(export: Path) -> None:
    text = card(export, evaluation=evaluation(graded=False))
    assert "| model | mean reward, sampled | mean reward, greedy | tokens |" in text
    assert "| this model | 1.25 (1 to 1.5) | 1.5 (1.25 to 1.75) | 30 |" in text
    assert "+0.5 mean reward, sampled (+0.25 to +0.75)" in text
    record = evaluation(graded=False)
    record["models"]["base"]["reward"] = record["differences"]["tuned-base"]["reward"] = None
    text = card(export, evaluation=record)
    assert "| base model | – |" in text and "nothing could be judged in both" in text


def test_without_a_run_or_an_evaluation_it_says_so(export: Path) -> None:
    text = card(export, evaluation=None, run=None)
    assert "Not evaluated, or the record of it is not at hand." in text and "rows to train on" not in text


def test_an_older_evaluation_without_rewards_is_read(export: Path) -> None:
    record = evaluation()
    del record["graded"], record["models"]["base"]["reward"]
    assert "| base model | 50.0% (25.0% to 75.0%) | 50.0% (25.0% to 75.0%) | 90.0% | – |" in card(
        export, evaluation=record
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overlap": {"exact": 2, "folded": 1, "row_ids": ["a"]}}, "rows, **3 of them trained on as well** (2 letter by letter);"),
        ({"overlap": None}, "held-out rows, not compared with the rows that were trained on;"),
        ({"selected_on": {"rows": 64, "asked_here": 5}}, "5 of the rows chose the checkpoint during training"),
    ],
)  # fmt: skip
def test_what_the_rows_have_to_do_with_the_training_is_said(changes: dict[str, Any], said: str, export: Path) -> None:
    assert said in card(export, evaluation=evaluation() | changes)


def test_a_record_from_before_rows_were_compared_claims_nothing(export: Path) -> None:
    record = evaluation()
    del record["overlap"]
    assert "not compared with the rows that were trained on" in card(export, evaluation=record)


def test_worked_examples_and_saved_steps_are_models_of_their_own(export: Path) -> None:
    record = evaluation()
    record["models"] |= dict.fromkeys(("few_shot", "step100"), record["models"]["base"])
    record |= {"few_shot": {"examples": 4, "prompts_sha256": "cd"}}
    record["differences"]["tuned-few_shot"] = record["differences"]["tuned-base"]
    text = card(export, evaluation=record)
    assert "| base model, shown 4 worked examples | 50.0%" in text and "| after step 100 | 50.0%" in text
    assert "- this model against base model, shown 4 worked examples, the same rows compared: +12.5 points" in text


def test_the_file_that_the_certificate_recommends_is_named_and_used(export: Path) -> None:
    certify(export, recommended="a-f16.gguf")
    text = card(export)
    assert "(-12.5 to +3.0) | passed, recommended |" in text
    assert "Recommended: a-f16.gguf, the smallest file that passed." in text
    assert "\nllama-cli -m a-f16.gguf " in text
    certify(export)
    assert "ecommended" not in card(export) and "\nllama-cli -m a-q8_0.gguf " in card(export)


def test_each_repository_says_what_it_is_and_where_the_rest_lies(tmp_path: Path) -> None:
    export = write_export(tmp_path / "a-1", "hub.adapter_repo=org/lora", "hub.gguf_repo=org/gguf", "model.source=org/base",
                          "task={name: gsm8k}")  # fmt: skip
    facts = facts_of(export)
    whole, lora, gguf = (card_text(facts, place) for place in facts.places)
    kinds = [(data["library_name"], data["base_model_relation"]) for data in map(metadata, (whole, lora, gguf))]
    assert kinds == [("transformers", "finetune"), ("peft", "adapter"), ("gguf", "quantized")]
    assert all(metadata(text)["base_model"] == "org/base" and metadata(text)["datasets"] == ["openai/gsm8k"]
               for text in (whole, lora, gguf))  # fmt: skip
    assert "a-f16.gguf | f16" in gguf and "a-f16.gguf | f16" not in whole
    assert "the GGUF files, in [org/gguf](https://huggingface.co/org/gguf)" in whole
    assert 'PeftModel.from_pretrained(base, "org/lora")' in lora
    assert "hf download org/gguf a-q8_0.gguf system-prompt.txt a-q8_0.Modelfile --local-dir ." in gguf
    assert "\nllama-cli -m a-q8_0.gguf -sysf system-prompt.txt" in gguf
    assert "\nollama create a-q8_0 -f a-q8_0.Modelfile\n" in gguf


def test_the_recipe_in_it_is_the_recipe(tmp_path: Path) -> None:
    export = write_export(
        tmp_path / "a-1", "rewards=[{name: length, ideal: 50, weight: 0.5}, {name: correctness}]", "grpo.max_steps=7",
        'task={name: gsm8k, train_file: "data/a `b`.jsonl", system_prompt: "Say ``` twice.\\nÄ: <b>"}',
    )  # fmt: skip
    recipe = load_resolved(ExportDir(export).recipe).recipe
    found = re.search(r"\n(`{3,})yaml\n(.*?)\n\1\n", card(export), re.DOTALL)
    assert found is not None
    (tmp_path / "again.yaml").write_text(found[2], encoding="utf-8")
    again = load_recipe(str(tmp_path / "again.yaml")).recipe
    assert again.model_dump(exclude={"hub"}) == recipe.model_dump(exclude={"hub"})


# Licences.


def test_llama_asks_for_its_name_its_words_and_its_notice(export: Path) -> None:
    text = card(export, licence=LICENCES["llama3.2"], has_licence_text=False)
    assert text.index("**Built with Llama**") < text.index("## Evaluation")
    assert metadata(text)["license"] == "llama3.2"
    assert "> Llama 3.2 is licensed under the Llama 3.2 Community License, Copyright © Meta Platforms, Inc." in text
    assert "let the name of a model made from it begin with “Llama”" in text
    assert "The licence's text is not in this repository; it stands at https://www.llama.com/llama3_2/license/" in text


def test_gemma_binds_whoever_gets_the_model(export: Path) -> None:
    text = card(export, licence=LICENCES["gemma"])
    assert metadata(text)["license"] == "gemma"
    assert "> Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms" in text
    assert "https://ai.google.dev/gemma/prohibited_use_policy" in text


def test_a_licence_that_is_not_known_keeps_its_name_and_one_that_is_not_stated_is_said_to_be_unknown(
    export: Path,
) -> None:
    text = card(export, licence=licence_called("My <b>Own</b> Licence"))
    assert metadata(text)["license"] == "other" and metadata(text)["license_name"] == "My <b>Own</b> Licence"
    assert "<b>" not in page(text)
    text = card(export, licence=Licence(UNKNOWN, UNKNOWN))
    assert metadata(text)["license"] == "unknown" and "states no licence" in text


# Foreign text.


@pytest.mark.parametrize(
    "text",
    [EVIL, "# x", "- x", "1. x", "12) x", "=====", "a | b", "<img src=x onerror=y>", "&lt;b&gt;", "\\(x\\)", "$$x$$",
     "www.evil.example", "me@evil.example", "a\n\n# b", "``", "~~x~~", "_x_ __y__", "[x]: http://evil.example"],
)  # fmt: skip
def test_foreign_text_is_shown_as_it_stands_and_does_nothing(text: str) -> None:
    shown = " ".join("".join(c for c in text if c != "\u202e").split())
    for around in (inline(text), f"- {inline(text)}", f"| {inline(text)} | b |\n| --- | --- |"):
        html = page(around)
        assert not re.search(r"<(?!/?(p|ul|li|table|thead|tbody|tr|th|td)\b)", html), html
        plain = re.sub(r"<[^>]+>", "", html).replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
        assert shown in plain.replace("&amp;", "&")


@pytest.mark.parametrize("text", ["```\n<b>x</b>\n```", "````\n```", "x\n~~~", EVIL])
def test_a_block_cannot_be_left(text: str) -> None:
    html = page(fenced(text) + "\n\nafter")
    assert html.count("<pre>") == 1 and html.rstrip().endswith("<p>after</p>") and "<b>" not in html


def test_no_record_can_write_into_the_page(export: Path) -> None:
    recipe = json.loads((export / "recipe.json").read_text())
    recipe |= {"description": EVIL}
    recipe["task"]["system_prompt"] = f"```\n{EVIL}\n</details>"
    recipe["model"] |= {"source": f"models/{EVIL.replace('/', '')}", "revision": EVIL}
    (export / "recipe.json").write_text(json.dumps(recipe))
    certify(export, passed=False)
    certificate = json.loads((export / "verify.json").read_text())
    certificate["files"][0]["checks"][0] |= {"name": EVIL, "value": EVIL, "why": EVIL}
    (export / "verify.json").write_text(json.dumps(certificate))
    record: dict[str, Any] = evaluation() | {"intervals": EVIL}
    record["decoding"]["seed"] = EVIL
    run = {"versions": {EVIL: EVIL}, "git_commit": EVIL, "data": DATA}
    manifest = read_json(export / "manifest.json")
    manifest["files"][0] |= {"type": EVIL, "tensor_types": {EVIL: 1}}
    text = card(export, evaluation=record, run=run, manifest=manifest, licence=licence_called(EVIL))
    html = page(text)
    assert "alert(1)" in html and "<script" not in html and "<img" not in html and "\u202e" not in text
    assert "evil.example" not in "".join(re.findall(r"<a [^>]*>", html))
    headings = [len(re.findall(r"<h[1-6]", one)) for one in (html, page(card(write_export(export / "other"))))]
    assert headings[0] == headings[1] and html.count("<details>") == html.count("</details>") == 2


def test_a_path_of_this_machine_is_cut_to_its_name(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert portable(
        {"a": ["/home/me/models/b c", "~/data/t.jsonl", str(tmp_path / "x"), r"C:\Users\me\m", "org/name"]}
    ) == {"a": ["b c", "t.jsonl", "x", "m", "org/name"]}
    for kept in (
        "/no_think",
        "/think and\nmore/of it",
        "data/train.jsonl",
        "https://example.org/a/b",
        "and/or",
        3,
        None,
    ):
        assert portable(kept) == kept
    assert portable(f"read {Path.home()}/models/x and more") == "read models/x and more"


def test_a_file_that_was_not_verified_has_no_numbers(export: Path) -> None:
    (export / "a-f16.gguf").write_bytes(b"other")
    text = card(export)
    assert "| a-f16.gguf | f16 | 0 | not verified |" in text and "There is none for these files." in text
    assert "> Why: a-f16.gguf is not the file that was verified." in text


def test_one_repository_holds_all_and_is_named_as_it_is(export: Path) -> None:
    facts = facts_of(export)
    assert facts.places == (Place(REPO, facts.places[0].files, frozenset({"merged", "adapter", "gguf"})),)
    assert "\n# model\n" in card(export)
