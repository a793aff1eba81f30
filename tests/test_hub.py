"""What is pushed was verified, what arrived is compared, what fails says how to go on. Against a Hub on loopback."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_export import REPO, certify, everything, write_export
from hub_stand_in import TOKEN, Hub, Repo, logged_in_to, running_hub
from models import child_environment
from toolkit.cli import pipeline
from toolkit.cli.verbs import STAGES
from toolkit.errors import Stopped, ToolkitError
from toolkit.hub import proven, push_export
from toolkit.rundir import ExportDir

Push = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub, logged_in_to(hub.url):
        yield hub


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A verified export in the current folder: the records are real, the models are not."""
    monkeypatch.chdir(tmp_path)
    return write_export(Path("exports/a-20260101-120000"))


@pytest.fixture
def push(export: Path, hub: Hub, tmp_path: Path) -> Push:
    """`toolkit push` in a process of its own: it speaks with the stand-in and knows no token of this machine."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in child_environment().items() if not key.startswith(("HF_", "HUGGING"))}
        given = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN, "NO_PROXY": "*"}
        given |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-m", "toolkit", "push", *words]
        done = subprocess.run(command, env=kept | given, capture_output=True, text=True, check=False)
        assert TOKEN not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def use(export: Path, **hub_keys: Any) -> None:
    """Let the export's recipe say so."""
    recipe = json.loads((export / "recipe.json").read_text())
    recipe["hub"] |= hub_keys
    (export / "recipe.json").write_text(json.dumps(recipe))


def test_an_export_arrives_whole_in_a_private_repository_and_may_be_pushed_again(
    push: Push, hub: Hub, export: Path
) -> None:
    done = push()
    assert done.returncode == 0, done.stderr
    assert hub.private == {REPO: True}
    here = everything(export)
    arrived = dict(hub.repos[REPO].files)
    assert b"# model" in arrived.pop("README.md")
    # The merged model at the root, where transformers looks; all else as it lies here.
    del here["README.md"]  # the export's own: the model card says more
    assert arrived == {name.removeprefix("merged/"): data for name, data in here.items()}
    assert hub.repos[REPO].messages == ["a-20260101-120000, verified"]
    assert f"13 files, 0 MB, in the private repository {hub.url}/{REPO}" in done.stdout
    assert "as tester" in done.stderr and "(the newest)" in done.stderr
    hub.repos[REPO].files["old.gguf"] = b"from elsewhere"
    sent = hub.asked.count("part")
    assert sent > 3
    again = push(str(export))
    assert again.returncode == 0 and "from elsewhere: old.gguf" in again.stderr
    assert hub.asked.count("part") == sent  # what is there is not sent twice


def test_three_repositories_each_hold_what_their_readers_look_for_at_the_root(hub: Hub, export: Path) -> None:
    use(export, adapter_repo="org/model-lora", gguf_repo="tester/model-GGUF")
    pushed = push_export(export)
    assert [one.repo for one in pushed] == [REPO, "org/model-lora", "tester/model-GGUF"]
    records = {"README.md", "recipe.json", "manifest.json", "verify.json", "LICENSE"}
    assert {name: set(repo.files) - records for name, repo in hub.repos.items()} == {
        REPO: {"config.json", "model.safetensors"},
        "org/model-lora": {"adapter_config.json", "adapter_model.safetensors"},
        "tester/model-GGUF": {"a-f16.gguf", "a-q8_0.gguf", "a-q8_0.Modelfile", "system-prompt.txt"},
    }
    assert all(records <= set(repo.files) for repo in hub.repos.values())


def test_without_a_merged_product_the_merged_folder_stays_here(hub: Hub, export: Path) -> None:
    recipe = json.loads((export / "recipe.json").read_text())
    recipe["export"]["merged"] = False
    (export / "recipe.json").write_text(json.dumps(recipe))
    push_export(export)
    assert not {"model.safetensors", "config.json"} & set(hub.repos[REPO].files)


def test_a_part_without_a_repository_stays_here(hub: Hub, export: Path) -> None:
    use(export, repo=None, gguf_repo="org/model-GGUF")
    push_export(export)
    assert list(hub.repos) == ["org/model-GGUF"]
    assert set(hub.repos["org/model-GGUF"].files) == {
        "a-f16.gguf", "a-q8_0.gguf", "a-q8_0.Modelfile", "system-prompt.txt", "LICENSE", "README.md", "recipe.json",
        "manifest.json", "verify.json",
    }  # fmt: skip


def test_the_notice_that_a_licence_wants_lies_beside_the_model(hub: Hub, export: Path) -> None:
    recipe = json.loads((export / "recipe.json").read_text())
    recipe["model"]["source"] = "unsloth/gemma-3-1b-it"
    (export / "recipe.json").write_text(json.dumps(recipe))
    push_export(export)
    notice = b"Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms\n"
    assert hub.repos[REPO].files["NOTICE"] == notice


@pytest.mark.parametrize("source", [None, "org/base", "unsloth/gemma-3-1b-it"])
def test_a_licence_text_that_the_base_did_not_bring_is_missed_here_and_in_the_card(
    source: str | None, hub: Hub, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Apache-2.0 by the header of the default's base, MIT by the base's page, Gemma by its name."""
    hub.repos["org/base"] = Repo(card={"license": "mit"})
    records = {name: json.loads((export / name).read_text()) for name in ("recipe.json", "manifest.json")}
    if source:
        records["recipe.json"]["model"]["source"] = source
    (export / "merged/LICENSE").unlink()
    del records["manifest.json"]["merged"]["sha256"]["LICENSE"]
    for name, record in records.items():
        (export / name).write_text(json.dumps(record))
    certify(export)
    push_export(export)
    assert "wants its text beside the model" in " ".join(capsys.readouterr().err.split())
    assert "The licence's text is not in this repository" in hub.repos[REPO].files["README.md"].decode()


def test_a_name_that_the_licence_forbids_is_refused(hub: Hub, export: Path) -> None:
    recipe = json.loads((export / "recipe.json").read_text())
    recipe["model"]["source"] = "unsloth/Llama-3.2-1B-Instruct"
    (export / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(ToolkitError, match="begin with “Llama”"):
        push_export(export, force=True)
    assert hub.repos == {}
    push_export(export, repo="org/Llama-3.2-mine")
    assert b"Llama 3.2 is licensed under" in hub.repos["org/Llama-3.2-mine"].files["NOTICE"]


def test_the_option_is_taken_literally_and_takes_everything(push: Push, hub: Hub, export: Path) -> None:
    use(export, adapter_repo="org/model-lora", gguf_repo="org/model-GGUF")
    hub.who["orgs"].append({"name": "Other-Org", "roleInOrg": "admin"})
    assert push("--repo", "Other-Org/My.Model_1").returncode == 0
    assert list(hub.private) == ["Other-Org/My.Model_1"]
    assert {"model.safetensors", "a-f16.gguf", "adapter/adapter_config.json"} <= set(
        hub.repos["Other-Org/My.Model_1"].files
    )


def test_a_private_model_does_not_go_into_a_public_repository(hub: Hub, export: Path) -> None:
    hub.repos[REPO] = Repo(private=False)
    with pytest.raises(ToolkitError, match="it is public"):
        push_export(export)
    assert hub.repos[REPO].files == {}
    use(export, private=False)
    assert push_export(export)[0].private is False


@pytest.mark.parametrize("there", ["model.safetensors.index.json", "adapter_config.json"])
def test_a_model_from_elsewhere_that_would_be_loaded_instead_stops_the_push(hub: Hub, export: Path, there: str) -> None:
    hub.repos[REPO] = Repo()
    hub.repos[REPO].files[there] = b"{}"
    with pytest.raises(ToolkitError, match="would be loaded instead") as caught:
        push_export(export)
    assert f"hf repos delete-files {REPO} {there}" in str(caught.value.hint)
    assert set(hub.repos[REPO].files) == {there}


def test_a_recipe_that_pushes_does_so_after_a_verification_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def run_stage(words: list[str]) -> int:
        called.append(words[0])
        if words[0] in ("train", "export"):
            Path(words[-1]).write_text(words[0], encoding="utf-8")
        return failing.get(words[0], 0)

    monkeypatch.setattr(pipeline, "_run_stage", run_stage)
    monkeypatch.setattr(pipeline, "show_summary", lambda *_: called.append("summary"))
    failing = {"verify": 1}
    pipeline.run_stages(["smoke"], to="verify", stages=STAGES, push=True)
    assert called[-1] == "verify"
    failing = {}
    pipeline.run_stages(["smoke"], to="export", stages=STAGES, push=True)
    assert called[-1] == "export"
    pipeline.run_stages(["smoke"], to="verify", stages=STAGES, push=True)
    assert called[-3:] == ["verify", "summary", "push"]


# Who may write.


@pytest.mark.parametrize(
    ("who", "token", "said"),
    [
        ({}, {"role": "read"}, "the token may only read"),
        ({"orgs": []}, {}, "org is neither the user nor one of their organisations"),
        ({"orgs": [{"name": "org", "roleInOrg": "read"}]}, {}, "the user may only read in org"),
        (
            {},
            {"role": "fineGrained", "fineGrained": {"scoped": [
                {"entity": {"type": "org", "name": "org"}, "permissions": ["repo.content.read"]},
                {"entity": {"type": "user", "name": "tester"}, "permissions": ["repo.write"]},
            ]}},
            "the token may not write to org",
        ),
        ({}, {"role": "fineGrained"}, "the token may not write to org"),
    ],
)  # fmt: skip
def test_who_may_not_write_is_told_before_anything_is_sent(
    hub: Hub, export: Path, who: dict[str, Any], token: dict[str, Any], said: str
) -> None:
    hub.who |= who
    hub.token |= token
    with pytest.raises(ToolkitError, match=said) as caught:
        push_export(export)
    assert str(caught.value.hint).endswith(f"; then: toolkit push {export}")
    assert hub.repos == {} and not {"create", "preupload"} & set(hub.asked)


def test_a_fine_grained_token_that_may_write_there_is_enough(hub: Hub, export: Path) -> None:
    scope = {"entity": {"type": "org", "name": "org"}, "permissions": ["repo.content.read", "repo.write"]}
    hub.token |= {"role": "fineGrained", "fineGrained": {"scoped": [scope]}}
    assert push_export(export)[0].files == 13


def test_all_permissions_are_asked_for_before_the_first_upload(hub: Hub, export: Path) -> None:
    use(export, gguf_repo="tester/readonly")
    hub.repos["tester/readonly"] = Repo(writable=False)
    with pytest.raises(ToolkitError, match="may not write there"):
        push_export(export)
    assert REPO not in hub.repos and "preupload" not in hub.asked


# What goes wrong.


@pytest.mark.parametrize(
    ("route", "status", "headers", "said"),
    [
        ("create", 403, {}, "may not write there"),
        ("info", 403, {"X-Error-Code": "GatedRepo"}, "is gated"),
        ("preupload", 404, {"X-Error-Code": "RepoNotFound"}, "no such place"),
        ("part", 400, {}, "the Hub answered 400"),
        ("commit", 413, {"X-Error-Message": f"too large for {TOKEN}"}, "the Hub answered 413: too large for …"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_command_to_try_again(
    hub: Hub, export: Path, route: str, status: int, headers: dict[str, str], said: str
) -> None:
    before = everything(export)
    hub.faults[route] = (status, headers)
    with pytest.raises(ToolkitError, match=said) as caught:
        push_export(export, repo="org/other")
    assert f"toolkit push {export} --repo org/other" in str(caught.value.hint)
    assert everything(export) == before
    hub.faults.clear()
    push_export(export, repo="org/other")
    assert "model.safetensors" in hub.repos["org/other"].files


@pytest.mark.parametrize("route", ["whoami", "validate", "preupload", "part", "commit", "tree"])
def test_the_token_stands_in_no_exception_however_deep(hub: Hub, export: Path, route: str) -> None:
    hub.faults[route] = (400, {"X-Error-Message": f"Bearer {TOKEN} is bad"})
    with pytest.raises(ToolkitError) as caught:
        push_export(export)
    shown = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in shown + repr(caught.value.__dict__)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_what_is_tried_again_is_told_without_the_address_that_lets_others_write(
    hub: Hub, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub itself warns of each request that it repeats."""
    said = io.StringIO()
    (handler,) = logging.getLogger("huggingface_hub").handlers
    monkeypatch.setattr(handler, "stream", said)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    hub.faults["part"] = (503, {})
    with pytest.raises(ToolkitError, match="the Hub answered 503"):
        push_export(export)
    assert "503 thrown while requesting PUT" in said.getvalue() and "Retrying" in said.getvalue()
    assert "SECRET" not in said.getvalue() and TOKEN not in said.getvalue()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HF_TOKEN", "", "there is no token for the Hub"),
        ("HF_TOKEN", "hf_somethingElse", "does not accept the token"),
        ("HF_HUB_OFFLINE", True, "unset HF_HUB_OFFLINE"),
        ("ENDPOINT", "http://127.0.0.1:9", "ConnectError"),
    ],
)
def test_without_token_or_network_nothing_is_sent(
    hub: Hub, export: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, said: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(export / "no login"))
    if name == "HF_TOKEN":
        monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr(constants, name, value)
    with pytest.raises(ToolkitError) as caught:
        push_export(export)
    assert said in f"{caught.value.message}; {caught.value.hint}" and f"toolkit push {export}" in str(caught.value.hint)
    assert hub.repos == {}


def test_a_push_that_is_stopped_says_how_to_go_on(hub: Hub, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toolkit.hub.upload", stop)
    with pytest.raises(Stopped) as caught:
        push_export(export)
    assert caught.value.hint == f"toolkit push {export}"


def test_a_file_that_is_lost_on_the_way_is_noticed_and_the_next_push_mends_it(hub: Hub, export: Path) -> None:
    for name in ("config.json", "a-f16.gguf"):
        hub.lost = name
        with pytest.raises(ToolkitError, match=f"{name} did not arrive whole"):
            push_export(export)
    hub.lost = None
    push_export(export)
    assert {"config.json", "a-f16.gguf"} <= set(hub.repos[REPO].files)


def test_a_file_that_changes_while_it_is_sent_is_noticed(
    hub: Hub, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("merged/config.json", "a-f16.gguf"):
        proof = proven(ExportDir(export))
        before = (export / name).read_bytes()
        (export / name).write_bytes(b"[]" if name.endswith("json") else b"g" * len(before))
        with monkeypatch.context() as patch:
            patch.setattr("toolkit.hub.proof_of", lambda _, proof=proof: proof)
            with pytest.raises(ToolkitError, match=f"{Path(name).name} did not arrive whole"):
                push_export(export)
        (export / name).write_bytes(before)


def test_an_export_of_which_nothing_has_a_repository_is_not_pushed(hub: Hub, export: Path) -> None:
    use(export, repo=None, gguf_repo="org/model-GGUF")
    for file in export.glob("*.gguf"):
        file.unlink()
    with pytest.raises(ToolkitError, match="nothing of this export has a repository"):
        push_export(export, force=True)
    assert hub.asked == []


def test_a_forced_push_that_fails_is_tried_again_with_force(push: Push, hub: Hub, export: Path) -> None:
    certify(export, passed=False)
    hub.faults["commit"] = (400, {})
    done = push("--force")
    assert done.returncode == 2 and f"toolkit push {export} --force" in done.stderr


@pytest.mark.parametrize("given", [None, "name", "org/name/more", "org/"])
def test_without_a_whole_repository_name_nothing_is_asked(export: Path, given: str | None) -> None:
    use(export, repo=None)
    with pytest.raises(ToolkitError) as caught:
        push_export(export, repo=given)
    assert caught.value.hint == f"toolkit push {export} --repo ORG/NAME"


def test_no_path_of_this_machine_is_pushed(hub: Hub, export: Path) -> None:
    recipe = json.loads((export / "recipe.json").read_text())
    recipe["model"]["source"] = "/home/somebody/models/base"
    (export / "recipe.json").write_text(json.dumps(recipe))
    manifest = json.loads((export / "manifest.json").read_text())
    manifest["base"]["source"] = "/home/somebody/models/base"
    manifest["warnings"] = [f"seen in {Path.cwd()}/cache/x"]
    (export / "manifest.json").write_text(json.dumps(manifest))
    push_export(export)
    files = hub.repos[REPO].files
    assert json.loads(files["recipe.json"])["model"]["source"] == "base"
    assert all(b"somebody" not in data and str(Path.cwd()).encode() not in data for data in files.values())
