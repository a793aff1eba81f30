"""The smallest recipe through every verb, on the real model, as a user would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tiny import need_llama_cpp, smollm2_file

RECIPE = Path(__file__).parent.parent / "recipes" / "smoke.yaml"


def toolkit(folder: Path, *words: str, code: int = 0, timeout_s: int = 400) -> str:
    """Run one command in `folder`; its output, both streams together."""
    command = [sys.executable, "-m", "toolkit", *words]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == code, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the smoke recipe went from training to verification, and the output of that."""
    need_llama_cpp()
    smollm2_file()
    folder = tmp_path_factory.mktemp("place")
    (folder / "output.txt").write_text(toolkit(folder, "train", str(RECIPE), "--to", "verify"), encoding="utf-8")
    return folder


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def only(folder: Path) -> Path:
    (path,) = [path for path in folder.iterdir() if path.is_dir()]
    return path


def test_the_pipeline_leaves_every_record_of_a_run(place: Path) -> None:
    run = only(place / "runs")
    assert read(run / "state.json")["state"] == "done"
    assert read(run / "recipe.json")["grpo"]["max_steps"] == 3
    manifest = read(run / "manifest.json")
    assert manifest["base"]["sha256"] and manifest["data"]["train"]["sha256"] and manifest["versions"]["trl"]
    stages = [json.loads(line)["stage"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert stages == ["warmup"] * 10 + ["grpo"] * 3
    assert (run / "adapter" / "adapter_model.safetensors").is_file()


def test_every_completion_is_kept_with_every_reward(place: Path) -> None:
    from pyarrow import parquet

    table = parquet.read_table(only(place / "runs") / "completions").to_pylist()
    assert len(table) == 3 * 8
    assert {"step", "prompt", "completion", "gold", "reward/correctness", "reward/xmlcount", "reward"} <= set(table[0])


def test_the_evaluation_keeps_what_scripts_rely_on(place: Path) -> None:
    record = read(only(place / "runs") / "eval.json")
    assert record["n"] == 8 and set(record["models"]) == {"base", "warmup", "tuned"}
    assert set(record["differences"]) == {"tuned-base", "tuned-warmup", "warmup-base"}
    for model in record["models"].values():
        assert model["ci95"][0] <= model["accuracy"] <= model["ci95"][1]


def test_the_export_is_verified_and_opens_in_plain_transformers(place: Path) -> None:
    export = only(place / "exports")
    certificate = read(export / "verify.json")
    assert certificate["passed"] is True
    assert {file["type"] for file in certificate["files"]} == {"f16", "q8_0"}
    assert all((export / file["file"]).is_file() for file in certificate["files"])
    script = "import sys, transformers as t; m = t.AutoModelForCausalLM.from_pretrained(sys.argv[1]); print(m.dtype)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    opened = subprocess.run(
        [sys.executable, "-c", script, str(export / "merged")],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "bfloat16" in opened.stdout


def test_nothing_of_this_machine_is_written_into_what_leaves(place: Path) -> None:
    export = only(place / "exports")
    for file in [*export.glob("*.json"), *(export / "merged").glob("*.json"), *(export / "adapter").glob("*.json")]:
        text = file.read_text(encoding="utf-8")
        assert str(Path.home()) not in text and str(place) not in text, file


def test_the_output_ends_with_a_table_and_the_command_to_talk_to_the_model(place: Path) -> None:
    output = (place / "output.txt").read_text(encoding="utf-8")
    assert "Traceback" not in output
    end = output[output.index("What was learned") :]
    assert "base model" in end and "after GRPO" in end and "toolkit chat" in end


def test_a_single_step_can_be_repeated(place: Path) -> None:
    before = read(only(place / "exports") / "manifest.json")["files"]
    toolkit(place, "export", "--format", "gguf")
    assert read(only(place / "exports") / "manifest.json")["files"] == before, "a second export is the same to the bit"
    assert not (only(place / "exports") / "verify.json").exists(), "a certificate speaks of the bytes it saw"
