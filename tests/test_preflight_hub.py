"""What a check says of the Hub, before anything is downloaded: gated, closed, out of reach, in the cache. The Hub is on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from hub_stand_in import TOKEN, Hub, Repo, logged_in_to, running_hub
from models import small_recipe
from toolkit.hubapi.reading import missing_model_files, reading
from toolkit.preflight.finding import Finding
from toolkit.preflight.hub import HubState, dataset_of, hub_findings, push_findings, without_waiting
from toolkit.recipe import Recipe, load_recipe

unsloths_table = pytest.mark.skipif(find_spec("unsloth") is None, reason="the table of copies is Unsloth's")
LLAMA = "meta-llama/Llama-3.2-1B-Instruct"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub, logged_in_to(hub.url):
        yield hub


def found(recipe: Recipe, state: HubState | None = None) -> Finding:
    (finding,) = hub_findings(recipe, state or HubState())
    return finding


def in_cache(cache: Path, name: str, **files: str) -> None:
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    for file, text in files.items():
        (snapshot / file.replace("__", ".")).write_text(text)


def test_a_model_that_lies_here_asks_nobody(hub: Hub) -> None:
    assert list(hub_findings(load_recipe("smoke").recipe, HubState())) == [] and hub.asked == []


def test_an_open_model_is_said_with_its_size(hub: Hub) -> None:
    hub.repos["org/open"] = Repo(branches={"main": {"model.safetensors": bytes(2_000_000), "photo.png": bytes(9)}})
    state = HubState()
    assert found(small_recipe("org/open"), state).status == "ok"
    assert (state.reachable, state.fetch_bytes) == (True, 2_000_000)


@unsloths_table
def test_a_gated_model_without_a_token_names_the_pages_and_a_copy(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere")
    hub.repos[LLAMA] = Repo(private=False, asks_for_terms=True)
    finding = found(small_recipe(LLAMA))
    assert finding.status == "failed" and finding.value == "it is gated, and there is no token here"
    hint = str(finding.hint)
    assert f"{hub.url}/{LLAMA}" in hint and "settings/tokens" in hint
    assert "model.source=unsloth/Llama-3.2-1B-Instruct" in hint


def test_a_token_without_access_is_another_message(hub: Hub) -> None:
    hub.repos[LLAMA] = Repo(asks_for_terms=True)
    finding = found(small_recipe(LLAMA))
    assert finding.value == "it is gated, and this token has no access to it"
    assert f"ask for access on {hub.url}/{LLAMA}" in str(finding.hint) and TOKEN not in str(finding)


def test_a_name_that_is_nowhere_names_the_page(hub: Hub) -> None:
    finding = found(small_recipe("org/nowhere"))
    assert (
        finding.status == "failed"
        and "no such place" in finding.value
        and f"{hub.url}/org/nowhere" in str(finding.hint)
    )


def test_a_token_that_is_not_accepted(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults["info"] = (500, {})
    answer = reading("org/open")
    assert answer.state == "closed" and "500" in answer.what and TOKEN not in answer.what


def test_a_token_that_may_not_write_is_a_finding(hub: Hub) -> None:
    recipe = load_recipe("smoke", ["hub.repo=org/model", "hub.push=true"]).recipe
    assert [finding.status for finding in push_findings(recipe, HubState())] == ["ok"]
    hub.token["role"] = "read"
    (finding,) = push_findings(recipe, HubState())
    assert finding.status == "failed" and "may only read" in finding.value and "settings/tokens" in str(finding.hint)


def test_a_hub_that_does_not_answer_is_asked_once(cache: Path) -> None:
    with running_hub() as hub:
        url = hub.url
    with logged_in_to(url):  # the port is closed now
        state = HubState()
        recipe = load_recipe("gemma3-gsm8k", ["task.train_file=null"]).recipe
        findings = list(hub_findings(recipe, state))
        assert state.reachable is False
        assert all("the Hub does not answer" in finding.value for finding in findings)
        assert "hf download unsloth/gemma-3-1b-it" in str(findings[0].hint) and findings[0].status == "failed"
        from huggingface_hub import constants

        with without_waiting(state):
            assert constants.HF_HUB_OFFLINE
        assert not constants.HF_HUB_OFFLINE
        pushing = load_recipe("smoke", ["hub.repo=org/model", "hub.push=true"]).recipe
        assert [finding.status for finding in push_findings(pushing, state)] == ["failed"]


def test_offline_what_is_missing_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    in_cache(cache, "org/model", config__json="{}")
    finding = found(small_recipe("org/model"))
    assert finding.status == "failed" and "not in the cache (model.safetensors)" in finding.value
    assert "HF_HUB_OFFLINE" in finding.value


def test_a_missing_shard_is_named(cache: Path) -> None:
    index = json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    )
    in_cache(
        cache, "org/model", **{"config__json": "{}", "model__safetensors__index__json": index,
        "model-00001-of-00002__safetensors": ""},
    )  # fmt: skip
    assert list(missing_model_files("org/model", None)) == ["model-00002-of-00002.safetensors"]


def test_what_is_in_the_cache_is_enough(cache: Path) -> None:
    in_cache(cache, "org/model", config__json="{}", model__safetensors="")
    assert found(small_recipe("org/model")).value == "in the cache"


@unsloths_table
def test_a_four_bit_copy_is_enough_to_train(cache: Path) -> None:
    in_cache(cache, "unsloth/gemma-3-1b-it-unsloth-bnb-4bit", config__json="{}", model__safetensors="")
    finding = found(small_recipe("unsloth/gemma-3-1b-it", model={"load_in_4bit": True}))
    assert finding.status == "warning" and "the export will want the original" in finding.value


def test_data_sets_of_the_hub_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLKIT_GSM8K_DIR", raising=False)
    assert dataset_of(load_recipe("gemma3-gsm8k").recipe.task) == "openai/gsm8k"
    assert dataset_of(load_recipe("smoke").recipe.task) is None
