"""llama.cpp's converter is put in its place, its doubts stop an export, and its last lines are shown."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tiny import exported
from toolkit.errors import ExportError
from toolkit.llamacpp.fetch import unpack

pytest.importorskip("torch")
pytest.importorskip("peft")

pytest_plugins = ("exports",)


def broken_run(tiny_run: Path, folder: Path, file: str, damage: dict[str, Any]) -> Path:
    """The run on a base of which one JSON file is changed."""
    base = folder / "base"
    shutil.copytree(tiny_run.parent.parent / "base", base)
    content = json.loads((base / file).read_text(encoding="utf-8")) | damage
    (base / file).write_text(json.dumps(content), encoding="utf-8")
    run = folder / "run"
    shutil.copytree(tiny_run, run)
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["model"]["source"] = str(base)
    (run / "recipe.json").write_text(json.dumps(recipe))
    return run


def test_a_tokenizer_that_the_converter_does_not_know_stops_the_export(tiny_run: Path, tmp_path: Path) -> None:
    run = broken_run(tiny_run, tmp_path, "tokenizer.json", {"pre_tokenizer": {"type": "WhitespaceSplit"}})
    with pytest.raises(ExportError, match="pre-tokenizer was not recognized"):
        exported(run, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.gguf"))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_model_that_the_converter_does_not_know_stops_it_with_its_last_words(
    tiny_run: Path, tmp_path: Path
) -> None:  # fmt: skip
    run = broken_run(tiny_run, tmp_path, "config.json", {"architectures": ["NoSuchForCausalLM"]})
    with pytest.raises(ExportError, match="NoSuchForCausalLM is not supported"):
        exported(run, tmp_path / "out")


SAYS = {
    "no-merges": ("WARNING:gguf.vocab:Adding merges requested but no merges found, output may be non-functional.", True),
    "special-token": ("WARNING:gguf.vocab:Special token type eot, id 9 out of range", True),
    "replaced": ("WARNING:hf-to-gguf:replacing token 5: 'a' -> 'b'", True),
    "spelled": ("WARNING:hf-to-gguf:replacing token 138: '\u2581\u2581' -> '  '", False),
    "transformers": ("The tokenizer you are loading has an incorrect regex pattern: this leads to incorrect tokenization.", True),
    "python": ("/x/y.py:3: UserWarning: the vocabulary was resized", True),
    "python-elsewhere": ("/x/tokenization.py:3: FutureWarning: a picture will be needed", False),
    "template": ("{# WARNING: a special token #}", False),
    "harmless": ("WARNING:hf-to-gguf:Unknown RoPE type: default", False),
    "other": ("WARNING:hf-to-gguf:ignoring a picture tower", False),
    "information": ("INFO:gguf.vocab:Setting special token type bos to 1", False),
}  # fmt: skip


@pytest.mark.parametrize(("line", "stops"), SAYS.values(), ids=SAYS)
def test_doubts_about_the_tokenizer_are_errors_and_other_warnings_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, stops: bool
) -> None:
    from toolkit.llamacpp import convert

    fake = tmp_path / "llama.cpp"
    for part in ("conversion", "gguf-py/gguf"):
        (fake / part).mkdir(parents=True)
        (fake / part / "__init__.py").touch()
    (fake / "convert_hf_to_gguf.py").write_text(
        "import sys, pathlib\n"
        "out = next(a for a in sys.argv if a.startswith('--outfile=')).partition('=')[2]\n"
        "pathlib.Path(out).write_bytes(b'GGUF')\n"
        f"print({line!r}, file=sys.stderr)\n"
    )
    monkeypatch.setenv("TOOLKIT_LLAMA_CPP_DIR", str(fake))
    out = tmp_path / "out.gguf"
    if stops:
        with pytest.raises(ExportError) as caught:
            convert(tmp_path, out, outtype="f16", name="n")
        assert line.removeprefix("/x/y.py:3: ") in caught.value.message and not out.exists()
    else:
        kept = (line.removeprefix("/x/tokenization.py:3: "),) if "picture" in line else ()
        assert convert(tmp_path, out, outtype="f16", name="n").warnings == kept


def test_set_up_takes_only_the_converter_out_of_the_source_distribution(tmp_path: Path) -> None:
    archive = tmp_path / "llama_cpp_python-9.tar.gz"
    tree = "llama_cpp_python-9/vendor/llama.cpp/"
    names = [
        "convert_hf_to_gguf.py", "conversion/__init__.py", "conversion/base.py", "gguf-py/gguf/__init__.py",
        "src/llama.cpp", "../../../escape.py", "conversion/../../escape.py",
    ]  # fmt: skip
    with tarfile.open(archive, "w:gz") as made:
        for name in [tree + name for name in names] + ["llama_cpp_python-9/.git/modules/vendor/llama.cpp/HEAD"]:
            member = tarfile.TarInfo(name)
            member.size = 3
            made.addfile(member, io.BytesIO(b"abc"))
    unpack(archive, tmp_path / "share" / "llama.cpp-9", version="9")
    assert {str(p.relative_to(tmp_path / "share")) for p in (tmp_path / "share").rglob("*") if p.is_file()} == {
        f"llama.cpp-9/{name}" for name in [*names[:4], "origin.json"]
    }
    origin = json.loads((tmp_path / "share" / "llama.cpp-9" / "origin.json").read_text())
    assert origin == {"llama-cpp-python": "9", "llama.cpp": "abc"}
