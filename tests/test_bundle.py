"""What lies beside exported files says how they were trained: for each program in its own words, the same bytes each time."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from models import byte_tokenizer, tiny_llama
from serving import NO_SYSTEM_ROLE
from test_modelfile import read
from tiny import edit_gguf, smollm2_file
from toolkit.atomic import sha256_of
from toolkit.bundle import write_bundle
from toolkit.llamacpp import GgufFile
from toolkit.llamacpp.split import split
from toolkit.recipe import Recipe, load_recipe
from toolkit.rundir import ExportDir

FILES = ["my run-q8_0.gguf", "my run-f16.gguf"]
SAMPLING = ["grpo.temperature=0.7", "grpo.top_p=0.9", "grpo.top_k=40", "grpo.min_p=0.05", "grpo.repetition_penalty=1.2"]


def recipe_with(*words: str) -> Recipe:
    return load_recipe("smoke", ["grpo.max_completion_length=48", "model.max_seq_length=256", *words]).recipe


@pytest.fixture
def export(tmp_path: Path) -> ExportDir:
    """The default's base model under two names, and what the merged folder says of its stop tokens."""
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    (tmp_path / "merged" / "chat_template.jinja").write_text(GgufFile(smollm2_file()).field("tokenizer.chat_template"))
    for name in FILES:
        (tmp_path / name).symlink_to(smollm2_file())
    return ExportDir(tmp_path)


def written(export: ExportDir, *words: str, files: Sequence[str] = FILES) -> dict[str, Any]:
    return write_bundle(export, recipe_with(*words), run="my run", files=files)


def test_a_modelfile_takes_the_file_beside_it_and_asks_as_training_did(export: ExportDir) -> None:
    record = written(export, *SAMPLING)
    commands = read((export.path / "my run-q8_0.Modelfile").read_text(encoding="utf-8"))
    values = dict(commands)
    assert values["FROM"] == "./my run-q8_0.gguf"
    assert values["SYSTEM"] == recipe_with().task.system_text
    assert [value for name, value in commands if name == "stop"] == ["<|endoftext|>", "<|im_end|>"]
    assert {name: float(values[name]) for name in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty")} == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repeat_penalty": 1.2,
    }  # fmt: skip
    assert (values["num_predict"], values["num_ctx"], values["repeat_last_n"]) == ("48", "256", "-1")
    assert record["ollama"]["template"] is True and values["#"] == record["ollama"]["notes"][0]


def test_an_open_webui_model_stands_on_what_the_server_reports(export: ExportDir) -> None:
    written(export)
    (model,) = json.loads((export.path / "my run-f16.open-webui.json").read_text(encoding="utf-8"))
    assert model["base_model_id"] == "my-run-f16" and model["id"] != model["base_model_id"]
    assert model["params"] == {
        "system": recipe_with().task.system_text, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "repeat_penalty": 1.0, "max_tokens": 48, "stop": ["<|endoftext|>", "<|im_end|>"],
        "reasoning_tags": False,
    }  # fmt: skip
    assert model["meta"]["capabilities"]["builtin_tools"] is False


def test_the_commands_name_the_file_the_system_prompt_and_every_setting(export: ExportDir) -> None:
    written(export, *SAMPLING)
    text = (export.path / "README.md").read_text(encoding="utf-8")
    server, cli = (
        shlex.split(next(line for line in text.splitlines() if line.startswith(f"{program} -m 'my run-f16.gguf'")))
        for program in ("llama-server", "llama-cli")
    )
    assert "--alias my-run-f16 --host 127.0.0.1" in " ".join(server)
    for command in (server, cli):
        assert "-c 256 -n 48 --temp 0.7 --top-p 0.9 --top-k 40 --min-p 0.05 --repeat-penalty 1.2" in " ".join(command)
    assert (export.path / cli[cli.index("-sysf") + 1]).read_text() == recipe_with().task.system_text + "\n"
    assert "--no-escape" in cli
    assert "ollama create my-run-q8_0 -f 'my run-q8_0.Modelfile'" in text


def test_without_a_system_prompt_nobody_is_told_of_one(export: ExportDir) -> None:
    written(export, "task.system_prompt=''")
    assert not (export.path / "system-prompt.txt").exists()
    assert "SYSTEM" not in (export.path / "my run-f16.Modelfile").read_text().replace(".System", "")
    assert "system" not in json.loads((export.path / "my run-f16.open-webui.json").read_text())[0]["params"]
    text = (export.path / "README.md").read_text(encoding="utf-8")
    assert "-sysf" not in text and "without a system prompt" in text


def test_a_second_bundle_is_the_same_to_the_bit_and_leaves_nothing_of_the_first(export: ExportDir) -> None:
    first = written(export)
    assert first == written(export)
    assert first["files"] == {name: sha256_of(export.path / name) for name in first["files"]}
    fewer = written(export, "task.system_prompt=''", files=FILES[:1])
    made = {path.name for path in export.path.iterdir()} - {*FILES, "merged"}
    assert made == set(fewer["files"]) == {"README.md", "my run-q8_0.Modelfile", "my run-q8_0.open-webui.json"}


def test_a_file_in_parts_has_one_name_and_is_joined_for_ollama_which_takes_no_parts(export: ExportDir) -> None:
    whole = export.path / "my run-f32.gguf"
    shutil.copyfile(smollm2_file(), whole)
    parts = [path.name for path in split(whole, max_bytes=60_000_000)]
    written(export, files=parts[:1])
    join = f"llama-gguf-split --merge 'my run-f32-00001-of-0000{len(parts)}.gguf' 'my run-f32.gguf'"
    commands = read((export.path / "my run-f32.Modelfile").read_text())
    assert len(parts) > 1 and [value for name, value in commands if name == "FROM"] == ["./my run-f32.gguf"]
    assert ("#", f"Ollama takes no file in parts. First: {join}") in commands
    text = (export.path / "README.md").read_text()
    assert text.index(join) < text.index("ollama create my-run-f32 -f 'my run-f32.Modelfile'")
    assert f"llama-server -m '{parts[0]}' --alias my-run-f32" in text
    (model,) = json.loads((export.path / "my run-f32.open-webui.json").read_text())
    assert model["base_model_id"] == "my-run-f32"


@pytest.mark.parametrize("run", ["my-run-20260203-040506", "my-run-20260203-040506-2"])
def test_the_date_in_a_modelfile_is_that_of_the_run_on_every_day(run: str, export: ExportDir) -> None:
    for name in FILES:
        (export.path / name).unlink()
    file = export.path / "a-f16.gguf"
    shutil.copyfile(smollm2_file(), file)
    dated = (
        "{% for m in messages %}[{{ strftime_now('%d %b %Y') }} {{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    edit_gguf(file, tokenizer__chat_template=dated)
    write_bundle(export, recipe_with("task.system_prompt=''"), run=run, files=[file.name])
    assert "[03 Feb 2026 user]" in (export.path / "a-f16.Modelfile").read_text()


def test_nothing_in_it_is_of_this_machine(export: ExportDir) -> None:
    for name in written(export)["files"]:
        assert str(export.path.parent) not in (export.path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("template", ["own", NO_SYSTEM_ROLE])
def test_transformers_pipeline_loads_the_merged_folder_as_the_readme_says(
    template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_llama().save_pretrained(tmp_path / "merged")
    byte_tokenizer().save_pretrained(tmp_path / "merged")
    if template != "own":
        (tmp_path / "merged" / "chat_template.jinja").write_text(template)
    written(ExportDir(tmp_path), "grpo.max_completion_length=5", files=[])
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code and "llama-server" not in text and "ollama" not in text
    assert ("no system role" in text) == (template != "own")
    monkeypatch.chdir(tmp_path)
    exec(code[1], {})
    assert capsys.readouterr().out.strip()


def test_vllm_loads_the_merged_folder_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm = pytest.importorskip("vllm")
    for name, value in {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}.items():
        monkeypatch.setenv(name, value)
    tiny_llama(hidden_size=256).bfloat16().save_pretrained(tmp_path)  # it knows no heads smaller than 64
    byte_tokenizer().save_pretrained(tmp_path)
    model = vllm.LLM(model=str(tmp_path), enforce_eager=True, max_model_len=128, generation_config="vllm")
    (answer,) = model.chat([{"role": "user", "content": "Hi"}], vllm.SamplingParams(max_tokens=4, temperature=0))
    assert 0 < len(answer.outputs[0].token_ids) <= 4
