"""docs/metrics.md names every key that is recorded, and no other; energy is what counters say, or nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from by_heart import ByHeart
from report_runs import LOGS, completion, report_recipe
from run_files import lines
from toolkit.engine.completions import Completion
from toolkit.recipe import Recipe
from toolkit.rundir import RunDir
from toolkit.train.energy import EnergyMeter
from toolkit.train.heldout import measure
from toolkit.train.record import Recorder

ROOT = Path(__file__).parent.parent
COMMON, NOT_ALWAYS = {"stage", "step", "seconds"}, {"energy_j"}


def documented() -> dict[str, set[str]]:
    """The keys in the first column of each section's table."""
    sections = re.split(r"^## ", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {part.split("\n")[0]: set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) for part in sections[1:]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The keys that each stage writes into a real file, with an abstention and both kinds of evaluation."""
    run = RunDir(tmp_path_factory.mktemp("run"))
    recipe = report_recipe()
    row = recipe.task.rows("train")[0]
    warmup, grpo = Recorder(run, "warmup"), Recorder(run, "grpo")
    warmup.rewind(None)
    warmup.warmup_step(1, {"loss": 1.0, "learning_rate": 0.1})
    grpo.rewind(None)
    grpo.grpo_step(1, LOGS, [completion(recipe, row, "1") | {"reward/xmlcount": None}, completion(recipe, row, "2")])
    for heldout in (recipe, without_golds()):
        grpo.heldout_step(1, measured(heldout))
    found: dict[str, set[str]] = {}
    for line in lines(run):
        found.setdefault(line["stage"], set()).update(set(line) - NOT_ALWAYS)
    return found


def without_golds() -> Recipe:
    task = {"name": "prompts", "prompts": ["Sing.", "Count to ten.", "Tell a joke.", "Hum."]}
    rewards = [{"name": "pattern", "pattern": "1"}]
    return Recipe.model_validate(report_recipe().model_dump() | {"task": task, "rewards": rewards, "warmup": None})


def measured(recipe: Recipe) -> dict[str, Any]:
    """What an evaluation during training says, with a model that answers by heart."""
    policy: Any = ByHeart(recipe)
    policy.text = lambda ids: f"answer {ids[0]}"
    rows = policy.rows

    def draw(_policy: Any, _adapter: Any, prompts: list[list[int]], *_: Any, **__: Any) -> list[Completion]:
        return [Completion(at, [*prompt, 0], [0.0, 0.0], truncated=False) for at, prompt in enumerate(prompts)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolkit.engine.sampler.draw", draw)
        return measure(policy, recipe, rows)


def test_every_recorded_key_is_in_the_document_and_no_other(recorded: dict[str, set[str]]) -> None:
    pages = documented()
    assert pages["Every line"] == COMMON | NOT_ALWAYS
    assert recorded["grpo"] == pages["GRPO"] | COMMON
    assert recorded["warmup"] == pages["Warm-up"] | COMMON
    assert recorded["eval"] == pages["Evaluation during training (`eval.every`)"] | COMMON


# --- energy


def zone(folder: Path, name: str, joules: float, span: float = 1000.0) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (path / "max_energy_range_uj").write_text(f"{round(span * 1e6)}\n")
    return path


def test_energy_is_the_sum_of_the_packages_and_survives_a_counters_new_beginning(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 10)
    zone(tmp_path, "intel-rapl:1", 990)
    zone(tmp_path, "intel-rapl:0:0", 5)
    meter = EnergyMeter(tmp_path, "no_such_library.so")
    assert meter.since_last() == 0
    zone(tmp_path, "intel-rapl:0", 25)
    zone(tmp_path, "intel-rapl:1", 20)
    zone(tmp_path, "intel-rapl:0:0", 15)
    assert meter.since_last() == pytest.approx(15 + 30), "a part of a package is in the package"
    assert meter.since_last() == 0


def test_without_a_readable_counter_there_is_no_figure(tmp_path: Path) -> None:
    (zone(tmp_path, "intel-rapl:0", 1) / "energy_uj").unlink()
    assert EnergyMeter(tmp_path, "no_such_library.so").since_last() is None
    assert EnergyMeter(tmp_path / "nothing", "no_such_library.so").since_last() is None


CARDS = """
static unsigned long long spent = 1000;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(unsigned long)(index + 1); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *out) {
    if (handle == (void *)2) return 3; /* not supported by this card */
    *out = spent += 2500;
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_cards_count_in_millijoules_and_those_without_a_counter_are_left_out(tmp_path: Path) -> None:
    """A library with NVML's functions and signatures, since no card is here."""
    (tmp_path / "cards.c").write_text(CARDS)
    library = tmp_path / "libcards.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "cards.c")], check=True)
    assert EnergyMeter(tmp_path, str(library)).since_last() == pytest.approx(2.5)


def test_a_recorded_step_has_its_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    recorder = Recorder(run, "warmup")
    recorder.rewind(None)
    monkeypatch.setattr(EnergyMeter, "since_last", lambda _: 12.345)
    recorder.warmup_step(1, {"loss": 1.0})
    assert lines(run)[0]["energy_j"] == 12.3
