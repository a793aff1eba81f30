"""Permission is asked before training, checkpoints go up meanwhile, a base's licence is found. Against a Hub on loopback."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_effects import BASE_PATH, write_checkpoint, write_run
from hub_stand_in import TOKEN, Hub, Repo, logged_in_to, running_hub
from models import SMOLLM2
from tiny import smollm2_file
from toolkit.atomic import read_json
from toolkit.errors import ToolkitError
from toolkit.hubapi import CheckpointUploads, base_licence, client, require_access, require_name
from toolkit.hubapi.client import redacted
from toolkit.hubapi.licences import LICENCES, UNKNOWN
from toolkit.recipe import Recipe, load_recipe
from toolkit.rundir import RunDir
from toolkit.train.record import last_checkpoint

REPO = "org/model"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub, logged_in_to(hub.url):
        yield hub


def recipe(*overrides: str) -> Recipe:
    return load_recipe("smoke", [f"hub.repo={REPO}", *overrides]).recipe


# Permission.


def test_a_recipe_that_does_not_push_asks_nobody(hub: Hub) -> None:
    require_access(recipe())
    assert hub.asked == []


@pytest.mark.parametrize("key", ["hub.push", "hub.push_checkpoints"])
def test_a_recipe_that_pushes_and_may_not_is_stopped_and_nothing_is_made(hub: Hub, key: str) -> None:
    require_access(recipe(f"{key}=true"))
    assert hub.repos == {}
    hub.token["role"] = "read"
    with pytest.raises(ToolkitError, match="may only read") as caught:
        require_access(recipe(f"{key}=true"))
    assert "hub.push=false hub.push_checkpoints=false" in str(caught.value.hint)


def test_every_repository_of_the_push_is_asked_for_and_for_checkpoints_the_one_they_go_to(hub: Hub) -> None:
    hub.repos["org/readonly"] = Repo(writable=False)
    with pytest.raises(ToolkitError, match="may not write there"):
        require_access(recipe("hub.push=true", "hub.gguf_repo=org/readonly"))
    require_access(recipe("hub.push_checkpoints=true", "hub.gguf_repo=org/readonly"))
    with pytest.raises(ToolkitError, match="may not write there"):
        require_access(recipe("hub.push_checkpoints=true", "hub.adapter_repo=org/readonly"))


def test_a_public_repository_for_a_private_model_is_noticed_before_training(hub: Hub) -> None:
    hub.repos[REPO] = Repo(private=False)
    with pytest.raises(ToolkitError, match="it is public"):
        require_access(recipe("hub.push=true"))
    require_access(recipe("hub.push=true", "hub.private=false"))


def test_a_name_that_the_licence_forbids_is_noticed_before_training(hub: Hub) -> None:
    hub.repos["unsloth/tiny"] = Repo(card={"license": "llama3.2"})
    with pytest.raises(ToolkitError, match="begin with “Llama”") as caught:
        require_access(recipe("hub.push=true", "model.source=unsloth/tiny"))
    assert "org/Llama-model" in str(caught.value.hint)
    require_access(recipe("hub.push=true", "model.source=unsloth/tiny", "hub.repo=org/Llama-3.2-mine"))


def test_training_begins_with_that_question(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.train import train

    monkeypatch.chdir(tmp_path)
    hub.token["role"] = "read"
    with pytest.raises(ToolkitError, match="may only read"):
        train(load_recipe("smoke", [f"hub.repo={REPO}", "hub.push=true"]))
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_pushes_nowhere_is_refused_when_it_is_read() -> None:
    with pytest.raises(ToolkitError, match="no repository to push to"):
        load_recipe("smoke", ["hub.push_checkpoints=true"])


@pytest.mark.parametrize("name", ["org/a--b", "org/ä", "org/x.git"])
def test_a_name_that_no_repository_can_have_is_not_made_to_fit(hub: Hub, name: str) -> None:
    with pytest.raises(ToolkitError, match="no repositories of this name"):
        require_access(recipe("hub.push=true", f"hub.repo={name}"))
    assert hub.asked == []


@pytest.mark.parametrize(
    "text",
    [
        f"Bearer {TOKEN}",
        "key hf_abcdefghijklmnop",
        "PUT http://s3.example/x?X-Amz-Credential=SECRET&X-Amz-Signature=SECRET",
    ],
)
def test_what_the_hub_says_is_repeated_without_secrets(hub: Hub, text: str) -> None:
    said = redacted(f"no: {text} and so on")
    assert said.startswith("no: ") and said.endswith("… and so on")
    assert TOKEN not in said and "abcdefgh" not in said and "SECRET" not in said


# Licences.


@pytest.mark.parametrize(
    ("card", "found"),
    [
        ({"license": "gemma"}, "gemma"),
        ({"license": "other", "license_name": "llama3.1"}, "llama3.1"),
        ({"license": "other", "license_name": "Apache-2.0"}, "apache-2.0"),
        ({"license": "cc-by-4.0"}, "other"),
        ({"license": ["mit"]}, UNKNOWN),
        ({}, UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_the_page_of_the_base_model_states_its_licence(hub: Hub, card: dict[str, Any] | None, found: str) -> None:
    hub.repos["org/base"] = Repo(card=card)
    licence = base_licence(recipe("model.source=org/base").model, client())
    assert (licence.id, licence.guessed) == (found, False)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "llama3.2"), ("meta-llama/Meta-Llama-3-8B", "llama3"),
        ("org/llama-3.1-8b", "llama3.1"), ("org/Llama3_3-x", "llama3.3"), ("org/TinyLlama-1.1B", UNKNOWN),
        ("unsloth/gemma-3-1b-it", "gemma"), ("google/gemma-7b", "gemma"), ("google/gemma2-2b", "gemma"),
        ("google/gemma-4-e2b-it", UNKNOWN), ("org/gemma4-x", UNKNOWN), ("Qwen/Qwen2.5-0.5B", UNKNOWN),
    ],
)  # fmt: skip
def test_where_nothing_states_it_the_name_is_a_guess(hub: Hub, source: str, found: str) -> None:
    licence = base_licence(recipe(f"model.source={source}").model, client())
    assert (licence.id, licence.guessed) == (found, found != UNKNOWN)


def test_a_gguf_file_and_a_folder_state_it_too(hub: Hub, tmp_path: Path) -> None:
    smollm2_file()
    assert base_licence(recipe(f"model.source={SMOLLM2}").model, None).id == "apache-2.0"
    (tmp_path / "README.md").write_text("---\nlicense: llama3.2\n---\n\n# It\n")
    assert base_licence(recipe(f"model.source={tmp_path}").model, None).id == "llama3.2"
    assert base_licence(recipe(f"model.source={tmp_path}/gone").model, None).id == UNKNOWN


@pytest.mark.parametrize(
    ("licence", "name", "right"),
    [
        ("llama3.2", "Llama-3.2-mine", True), ("llama3.2", "llama_mine", True), ("llama3.2", "my-Llama", False),
        ("llama3", "Llama-3-mine", True), ("llama3", "Llama-mine", False), ("gemma", "mine", True),
    ],
)  # fmt: skip
def test_a_llamas_name_begins_with_llama(licence: str, name: str, right: bool) -> None:
    if right:
        require_name(f"org/{name}", LICENCES[licence])
    else:
        with pytest.raises(ToolkitError, match="wants the name of a model made from it"):
            require_name(f"org/{name}", LICENCES[licence])


# Checkpoints.


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "runs" / "a-20260101-120000", recipe("hub.push_checkpoints=true"))


def uploads(run: RunDir, **settings: Any) -> CheckpointUploads:
    return CheckpointUploads(run, recipe("hub.push_checkpoints=true").hub, lambda: last_checkpoint(run), **settings)


def up(hub: Hub) -> dict[str, bytes]:
    return hub.repos[REPO].branches["checkpoints"]


def settled(up: CheckpointUploads) -> None:
    """Wait for what is under way as the next steps of a training would."""
    until = time.monotonic() + 20
    while up._busy() and time.monotonic() < until:
        time.sleep(0.01)
    up.look()


def let_end(hub: Hub, up: CheckpointUploads) -> None:
    """A thread that was given up must not speak with the next test's hub."""
    hub.open.set()
    assert up._thread is not None
    up._thread.join(20)


def test_what_is_on_the_branch_is_a_run_that_can_be_resumed_elsewhere(hub: Hub, run: RunDir, tmp_path: Path) -> None:
    with uploads(run) as sending:
        sending.look()
        assert hub.repos == {}  # no checkpoint yet
        write_checkpoint(run, 10)
        sending.look()
    assert hub.repos[REPO].private and hub.repos[REPO].files == {}  # nothing unverified on the main branch
    for name, data in up(hub).items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(data)
        assert BASE_PATH.encode() not in data
    there = RunDir(tmp_path / "there" / "runs" / run.path.name)
    checkpoint = last_checkpoint(there)
    assert checkpoint is not None and checkpoint.name == "checkpoint-10"
    assert {path.name for path in checkpoint.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "trainer_state.json",
    }  # fmt: skip
    assert read_json(there.recipe) == read_json(run.recipe) and there.metrics.is_file()
    assert (there.warmup_adapter / "adapter_model.safetensors").read_bytes() == b"warm"
    assert read_json(run.hub) == {
        "repo": REPO, "branch": "checkpoints", "uploaded": 1, "failed": 0, "last_uploaded": "checkpoint-10",
        "last_error": None,
    }  # fmt: skip
    assert not (run.path / ".hub").exists()


def test_a_newer_checkpoint_takes_the_place_of_the_older_and_each_is_sent_once(hub: Hub, run: RunDir) -> None:
    with uploads(run) as sending:
        for step in (1, 2):
            write_checkpoint(run, step)
            sending.look()
            settled(sending)
            sending.look()
    assert {name.split("/")[3] for name in up(hub) if "/checkpoints/" in name} == {"checkpoint-2"}
    assert hub.repos[REPO].messages == [f"{run.path.name}, checkpoint-{step}" for step in (1, 2)]
    with uploads(run) as again:  # a resumed run
        again.look()
    assert len(hub.repos[REPO].messages) == 2


def test_a_push_that_fails_is_warned_of_and_counted_and_stops_nothing(
    hub: Hub, run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults["commit"] = (400, {"X-Error-Message": f"no room for {TOKEN}"})
    with uploads(run) as sending:
        write_checkpoint(run, 1)
        sending.look()
        settled(sending)
        sending.look()  # the same one is not tried at every step
        assert hub.asked.count("commit") == 1
        hub.faults.clear()
        write_checkpoint(run, 2)
        sending.look()
    tally = read_json(run.hub)
    assert (tally["uploaded"], tally["failed"], tally["last_uploaded"]) == (1, 1, "checkpoint-2")
    said = capsys.readouterr().err
    assert "checkpoint-1 is not on the Hub: the Hub answered 400: no room for …" in said and TOKEN not in said


def test_the_last_checkpoint_is_tried_once_more_at_the_end(hub: Hub, run: RunDir) -> None:
    hub.faults["preupload"] = (400, {})
    with uploads(run) as sending:
        write_checkpoint(run, 1)
        sending.look()
        settled(sending)
        hub.faults.clear()
    assert read_json(run.hub)["last_uploaded"] == "checkpoint-1"


@pytest.mark.parametrize("broken", ["no token", "no Hub"])
def test_without_a_hub_the_training_goes_on(
    hub: Hub, run: RunDir, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    from huggingface_hub import constants

    if broken == "no token":
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(run.path / "no login"))
        monkeypatch.setenv("HF_TOKEN", "")
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with uploads(run) as sending:
        write_checkpoint(run, 1)
        sending.look()
    assert read_json(run.hub)["failed"] == 2


def test_a_hub_that_does_not_answer_holds_nobody_up(hub: Hub, run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    hub.open.clear()
    write_checkpoint(run, 1)
    started = time.monotonic()
    with uploads(run, wait_s=0.3) as sending:
        sending.look()
        assert time.monotonic() - started < 2  # it waits for no answer
        shutil.rmtree(run.checkpoints / "checkpoint-1")  # as the trainer does with old ones
        write_checkpoint(run, 2)
        sending.look()
    assert time.monotonic() - started < 10
    assert read_json(run.hub)["failed"] == 1 and "not done after" in capsys.readouterr().err
    let_end(hub, sending)


def test_a_checkpoint_that_the_trainer_removes_meanwhile_still_arrives(hub: Hub, run: RunDir) -> None:
    hub.open.clear()
    first = write_checkpoint(run, 1)
    with uploads(run) as sending:
        sending.look()
        shutil.rmtree(first)
        hub.open.set()
    name = f"runs/{run.path.name}/checkpoints/checkpoint-1/adapter_model.safetensors"
    assert up(hub)[name] == b"w" * 1500 + b"1"


def test_a_checkpoint_that_cannot_be_read_stops_nothing(hub: Hub, run: RunDir) -> None:
    broken = write_checkpoint(run, 1)
    (broken / "adapter_config.json").write_text("{")
    with uploads(run) as sending:
        sending.look()
        sending.look()
        assert read_json(run.hub)["failed"] == 1
        write_checkpoint(run, 2)
    assert read_json(run.hub)["last_uploaded"] == "checkpoint-2"


def test_a_run_that_is_stopped_at_once_does_not_wait(hub: Hub, run: RunDir) -> None:
    hub.open.clear()
    write_checkpoint(run, 1)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), uploads(run) as sending:
        sending.look()
        raise KeyboardInterrupt
    assert time.monotonic() - started < 5
    let_end(hub, sending)


def test_without_the_key_nothing_is_sent_or_written(hub: Hub, run: RunDir) -> None:
    write_checkpoint(run, 1)
    with CheckpointUploads(run, recipe().hub, lambda: last_checkpoint(run)) as sending:
        sending.look()
    assert hub.asked == [] and not run.hub.exists()
    assert json.loads(run.state.read_text()) == {"state": "running"}
