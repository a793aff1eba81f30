"""Variants of a recipe, and what is known of a Ray before there is one. tests/cluster/ trains on a real one."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import pytest

from toolkit import versions
from toolkit.atomic import write_json
from toolkit.cli import main
from toolkit.cluster import session
from toolkit.cluster.child import environment, settings
from toolkit.cluster.post import Message, Post
from toolkit.cluster.session import Machine, cores_each
from toolkit.cluster.shared import marked, require_shared
from toolkit.cluster.sweep_record import SweepRecord, held, state_of
from toolkit.cluster.sweep_results import Reader, Result, last_words
from toolkit.errors import DataError, RecipeError, ToolkitError
from toolkit.recipe.grid import split_values, variants
from toolkit.rundir import SweepDir
from toolkit.versions import pins

ROOT = Path(__file__).parent.parent


# Words -> variants


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-5,1e-4", ["1e-5", "1e-4"]),
        ("1, 2 ,3", ["1", "2", "3"]),
        ("one", ["one"]),
        ("", [""]),
        ("[a,b],[c]", ["[a,b]", "[c]"]),
        ("[[1, 2], {a: 3, b: 4}],null", ["[[1, 2], {a: 3, b: 4}]", "null"]),
        ("[{name: xmlcount}, {name: integer}]", ["[{name: xmlcount}, {name: integer}]"]),
        ('"Hello, you",Bye', ['"Hello, you"', "Bye"]),
        ("'it''s, well, so',b", ["'it''s, well, so'", "b"]),
        ('"a \\", b",c', ['"a \\", b"', "c"]),
        ("it's,that's", ["it's", "that's"]),
        ('["a]",b],c', ['["a]",b]', "c"]),
        ("a,,b", ["a", "", "b"]),
        ("[a,b", ["[a,b"]),
    ],
)
def test_values_stand_between_commas_outside_of_yaml_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


def test_every_combination_is_a_variant_and_the_last_key_changes_fastest() -> None:
    found = variants("smoke", ["grpo.learning_rate=1e-5,1e-4", "grpo.max_steps=2", "seed=1,2"])
    assert [variant.number for variant in found] == [1, 2, 3, 4]
    made = [(v.loaded.recipe.grpo.learning_rate, v.loaded.recipe.seed) for v in found]
    assert made == [(1e-5, 1), (1e-5, 2), (1e-4, 1), (1e-4, 2)]
    assert {variant.loaded.recipe.grpo.max_steps for variant in found} == {2}
    assert found[1].label == "grpo.learning_rate=1e-5 seed=2"


def test_lists_and_items_of_lists_are_values_too() -> None:
    found = variants("smoke", ["export.gguf=[f16],[q8_0,f16]", "rewards.correctness.weight=1,2"])
    assert [list(variant.loaded.recipe.export.gguf) for variant in found[::2]] == [["f16"], ["q8_0", "f16"]]
    assert [variant.loaded.recipe.rewards[-1].weight for variant in found[:2]] == [1.0, 2.0]


def test_a_variant_is_known_by_its_recipe_however_it_was_written() -> None:
    one = variants("smoke", ["grpo.learning_rate=1e-5,2e-5", "seed=7"])
    other = variants("smoke", ["seed=7,8", "grpo.learning_rate=0.00001"])
    assert one[0].fingerprint == other[0].fingerprint
    assert len({variant.fingerprint for variant in [*one, other[1]]}) == 3


def test_every_fault_of_every_variant_is_named_at_once_and_where_it_is() -> None:
    with pytest.raises(RecipeError) as raised:
        variants("smoke", ["grpo.learning_rat=1", "seed=1,x", "grpo.max_steps=0,5"])
    told = [(fault.key, fault.message) for fault in raised.value.faults]
    assert len(told) == 3
    assert any(key == "seed" and message.endswith("(in seed=x grpo.max_steps=0 and 1 more)") for key, message in told)
    assert any("learning_rat" in key and "(in" not in message for key, message in told)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed=1"], "no key has several values"),
        ([], "no key has several values"),
        (["seed"], "seed is no key=value,value"),
        (["seed=1,2", "seed=3"], "seed stands there twice"),
        (["seed=1,,2"], "a value between commas is empty"),
        (
            [f"seed={','.join(map(str, range(30)))}", f"grpo.max_steps={','.join(map(str, range(1, 30)))}"],
            "870 variants",
        ),
    ],
)
def test_words_that_are_no_sweep_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(ToolkitError, match=re.escape(said)):
        variants("smoke", words)


# The verb, without Ray


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.versions, "build", lambda package: None)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("words", [["sweep", "smoke", "seed=1,2"], ["train", "smoke", "--ray", "local"]])
def test_a_missing_ray_is_named_with_the_command_that_installs_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "the package ray is not installed" in said and "--requirement requirements/ray.txt" in said


@pytest.mark.usefixtures("no_ray")
def test_faults_come_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "smoke", "grpo.max_steps=2,-2"]) == 2
    assert "grpo.max_steps" in capsys.readouterr().err
    assert main(["sweep", "smoke", "grpo.prompts_per_step=2,3", "--processes", "2"]) == 2
    assert "grpo.prompts_per_step=3" in capsys.readouterr().err


def test_ray_places_the_processes_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "smoke", "--ray", "local", "--machines", "2", "--rank", "0", "--address", "a"]) == 2
    assert "Ray places the processes itself" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["here", "ray://", "http://a:1", "a:b", "127.0.0.1:1"])
def test_an_address_that_is_none_or_where_nobody_is_fails_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.versions, "build", lambda package: "1")
    with pytest.raises(ToolkitError), session.connected(address):
        pass


# What a Ray has room for


@pytest.mark.parametrize(
    ("machines", "workers", "gpus", "cores"),
    [
        ([Machine(2, 0)], 1, 1, 2),
        ([Machine(2, 0)], 2, 1, 1),
        ([Machine(8, 0)], 3, 1, 2),
        ([Machine(4, 0), Machine(2, 0)], 2, 1, 2),  # three each would leave the second without a machine
        ([Machine(4, 0), Machine(4, 0)], 2, 1, 4),
        ([Machine(8, 4)], 4, 1, 1),
        ([Machine(8, 4), Machine(64, 0)], 2, 2, 1),
    ],
)
def test_every_worker_is_whole_on_one_machine(machines: list[Machine], workers: int, gpus: int, cores: int) -> None:
    assert cores_each(machines, workers, gpus=gpus) == cores


@pytest.mark.parametrize(
    ("machines", "workers", "gpus", "said"),
    [
        ([Machine(2, 0)], 3, 1, "this Ray has 2 cores, and 3 cores are needed"),
        ([Machine(64, 2)], 3, 1, "this Ray has 2 GPUs, and 3 GPUs are needed"),
        ([Machine(64, 3), Machine(64, 3)], 3, 2, "this Ray has 6 GPUs, and 3 times 2 GPUs are needed"),
        ([], 1, 1, "this Ray has 0 cores"),
    ],
)
def test_workers_without_room_are_refused(machines: list[Machine], workers: int, gpus: int, said: str) -> None:
    with pytest.raises(ToolkitError, match=said):
        cores_each(machines, workers, gpus=gpus)


def test_no_secret_goes_along_to_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "JUDGE_API_KEY", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "s3cret")
    assert set(settings()) <= {"HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "OMP_NUM_THREADS", "TOOLKIT_CACHE"}


def test_a_child_gets_its_share_of_the_cores_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Ray's own
    monkeypatch.setenv("RAY_AUTH_TOKEN", "s3cret")
    assert not {"OMP_NUM_THREADS", "RAY_AUTH_TOKEN"} & set(environment({}, None))
    assert environment({}, 4)["OMP_NUM_THREADS"] == "4"
    assert environment({"OMP_NUM_THREADS": "2"}, 4)["OMP_NUM_THREADS"] == "2"
    assert environment({}, 4)["PYTHONPATH"].split(":")[0] == str(ROOT)


def test_a_folder_that_a_machine_does_not_see_is_an_error_there(tmp_path: Path) -> None:
    with marked(str(tmp_path / "new")) as scratch:
        require_shared(scratch)
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(ToolkitError, match="does not see this folder"):
        require_shared(scratch)


# What the trials say


def test_a_post_gives_every_message_once() -> None:
    post = Post()
    post.put(Message("out", 1, "a"))
    post.put(Message("out", 2, "b"))
    assert [message.text for message in post.take()] == ["a", "b"] and post.take() == []
    assert not post.stopping()
    post.stop()
    assert post.stopping()


def test_a_failed_process_is_quoted_by_its_panel_or_its_tracebacks_end() -> None:
    panel = ["noise", "╭─ error ───╮", "│ one step needs 2 rows │", "│ → lower it           │", "╰───────────╯"]
    assert last_words(panel) == "one step needs 2 rows → lower it"
    assert last_words(["Traceback (most recent call last):", "  File …", "ValueError: no"]) == "ValueError: no"
    assert last_words([]) == ""


@pytest.fixture
def swept(tmp_path: Path) -> tuple[list[Result], Reader, SweepRecord, SweepDir]:
    where = SweepDir(tmp_path / "sweeps" / "smoke")
    where.path.mkdir(parents=True)
    results = [Result(variant) for variant in variants("smoke", ["seed=1,2,3,4"])]
    record = SweepRecord(where)
    return results, Reader(where, record, results), record, where


def test_results_follow_what_is_heard(swept: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, reader, record, where = swept
    for sender, code in ((1, 0), (2, 2), (3, 130)):
        for message in (
            Message("begun", sender),
            Message("run", sender, f"runs/{sender}"),
            Message("out", sender, "step 1/3 [red]"),
            Message("err", sender, "╭─ error ─╮"),
            Message("err", sender, "│ no rows │"),
            Message("log", sender, "a table"),
            Message("end", sender, code=code),
        ):
            reader.hear(message)
    reader.hear(Message("begun", 4))
    reader.close()
    assert [result.state for result in results] == ["done", "failed", "stopped", "failed"]
    assert results[1].why == "no rows" and "from outside" in results[3].why
    shown = capsys.readouterr()
    assert "[2/4] step 1/3 [red]" in shown.out and "a table" not in shown.out and "[2/4] │ no rows │" in shown.err
    assert where.log(2).read_text().splitlines()[-1] == "a table"
    assert record.run_of(results[0].variant.fingerprint) is None  # the folder is not there
    (tmp_path / "runs" / "1").mkdir(parents=True)
    write_json(tmp_path / "runs" / "1" / "recipe.json", {})
    assert SweepRecord(where).run_of(results[0].variant.fingerprint) == tmp_path / "runs" / "1"


def test_an_error_that_was_sent_is_the_reason(swept: Any) -> None:
    results, reader, *_ = swept
    reader.hear(Message("begun", 1))
    reader.hear(Message("end", 1, code=2, error=DataError("no rows", where="a.jsonl")))
    assert results[0].why == "a.jsonl: no rows"


def test_how_far_a_variant_is_its_runs_own_files_say(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    (run / "adapter").mkdir(parents=True)
    assert state_of(None, to="eval") == "new"
    write_json(run / "state.json", {"state": "running"})
    assert state_of(run, to="eval") == "begun"
    write_json(run / "state.json", {"state": "done"})
    assert state_of(run, to="eval") == "trained" and state_of(run, to="train") == "done"
    write_json(run / "eval.json", {})
    assert state_of(run, to="eval") == "done"


def test_one_process_at_a_time_sweeps_a_recipe(tmp_path: Path) -> None:
    where = SweepDir(tmp_path / "sweeps" / "a")
    with held(where), pytest.raises(ToolkitError, match="another process sweeps this recipe"), held(where):
        pass


# The pins


def test_rays_pins_are_those_of_the_other_sets_and_lack_nothing() -> None:
    ours = pins(ROOT / "requirements" / "ray.txt")
    for name in ("gpu.txt", "open-webui.txt"):
        other = pins(ROOT / "requirements" / name)
        assert {package: version for package, version in ours.items() if other.get(package, version) != version} == {}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"ray[client,train,tune]=={ours['ray']}" in project
    if versions.build("ray") is None:
        pytest.skip("Ray is not installed")
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    there = {canonicalize_name(name) for name in (*ours, *pins(ROOT / "requirements" / "cpu.txt"))}
    for line in importlib.metadata.requires("ray") or []:
        need = Requirement(line)
        if any(not need.marker or need.marker.evaluate({"extra": extra}) for extra in ("", "client", "train", "tune")):
            assert canonicalize_name(need.name) in there
            assert need.specifier.contains(importlib.metadata.version(need.name), prereleases=True), need


def test_the_recipe_of_a_job_survives_the_way(tmp_path: Path) -> None:
    """As JSON in a file of another machine, named so that the run is named after its recipe."""
    from toolkit.cluster.train_job import Job
    from toolkit.recipe import load_recipe, load_resolved

    loaded = load_recipe("smoke", ["seed=5"])
    job = Job("smoke", loaded.recipe.model_dump(mode="json"), folder="/work", then="eval")
    words = job.words(tmp_path)
    assert words[:2] == ["train", "--resolved"] and words[3:5] == ["--then", "eval"]
    again = load_resolved(Path(words[2]))
    assert (again.name, again.recipe) == ("smoke", loaded.recipe)
    assert json.loads(Path(words[2]).read_text())["seed"] == 5
    assert Job("smoke", {}, folder="/work", resume="/work/runs/a").words(tmp_path)[:3] == [
        "train", "--resume", "/work/runs/a",
    ]  # fmt: skip
