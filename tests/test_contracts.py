"""Whatever the toolkit passes to unsloth, trl, vllm, peft, transformers and bitsandbytes exists in the pinned packages.

The toolkit's source is read for what is passed (contract_uses.py) and the libraries' for what they take (contract_sources.py), so
a new argument, name or method is compared without being listed here, and an upgrade that renames one breaks this test. What Unsloth
generates of TRL for a GPU is in test_gpu_trainer.py; that every TRL field is decided, in test_engine_arguments.py's kin.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vllm_table
from contract_sources import Offer, Source, installed
from contract_uses import IN_TURN, LIBRARIES, Use, environment, uses
from effects import CPU, GPU, setting
from recipe_keys import EFFECTS, base_of, with_values
from toolkit.engine import arguments
from toolkit.recipe import Recipe

FOLDER = Path("folder")
ON_A_GPU = ("unsloth.FastLanguageModel", "unsloth.models.loader.FastLanguageModel")
"""unsloth/__init__.py gives the name to another class where it finds Apple's or no accelerator; that one is used by real tests."""
FROM_RECIPE: dict[str, Callable[[Recipe, Any], dict[str, Any]]] = {
    "unsloth.FastLanguageModel.from_pretrained": lambda recipe, on: arguments.load_arguments(recipe, on, "source"),
    "unsloth.FastLanguageModel.get_peft_model": lambda recipe, on: arguments.adapter_arguments(recipe),
    "trl.GRPOConfig": lambda recipe, on: arguments.grpo_arguments(recipe, on, FOLDER),
    "trl.SFTConfig": lambda recipe, on: arguments.warmup_arguments(recipe, on, FOLDER),
}
"""Arguments that functions make of a recipe, by what takes them."""
HANDED_BACK = {"transformers.integrations.sdpa_attention.sdpa_attention_forward"}
"""It gets on what transformers called with."""
ALSO_TRUE_OF = {
    "unsloth.FastLanguageModel.from_pretrained": "unsloth.models.loader.FastModel.from_pretrained",
    "unsloth.FastLanguageModel.get_peft_model": "unsloth.models.vision.FastBaseModel.get_peft_model",
}
"""Where Unsloth goes on with models that it has no fast classes for."""


@functools.cache
def used() -> list[Use]:
    return uses()


@functools.cache
def offer(target: str) -> Offer | None:
    if target.startswith("vllm."):
        return _vllm().get(target)
    return _source().offer(target.replace(*ON_A_GPU) if target.startswith(ON_A_GPU[0]) else target)


@functools.cache
def _vllm() -> dict[str, Offer]:
    return vllm_table.offered()


@functools.cache
def _source() -> Source:
    return Source(installed)


def faults(use: Use) -> Iterator[str]:
    """What of a use the library does not offer. A name that Unsloth would let fall silently (`**kwargs`) is a fault."""
    found = offer(use.target)
    if found is None:
        yield f"{use.place}: there is no {use.target}"
        return
    if not use.called:
        return
    if use.unread and use.target not in FROM_RECIPE.keys() | HANDED_BACK:
        yield f"{use.place}: what is passed to {use.target} cannot be read"
    if use.positional > found.positional and not found.more_values:
        yield f"{use.place}: {use.target} takes {found.positional} arguments by place, not {use.positional}"
    for word in sorted(use.keywords - _taken(use.target, found)):
        yield f"{use.place}: {use.target} has no {word}"


def _taken(target: str, found: Offer) -> set[str]:
    offers = [found, *(further for name in IN_TURN.get(target, ()) if (further := offer(name)))]
    words = set() if target.startswith("unsloth") else {word for each in offers for word in each.words}
    return words | {name for each in offers for name in each.parameters}


# What the toolkit writes ------------------------------------------------------------------------------


def test_every_name_and_argument_in_the_source_exists() -> None:
    found = used()
    assert {use.target.partition(".")[0] for use in found} == set(LIBRARIES)
    assert [fault for use in found for fault in faults(use)] == []


def recipes() -> Iterator[Recipe]:
    """Both sides of every key of a recipe: all arguments that are ever passed."""
    for key, effect in EFFECTS.items():
        yield with_values(base_of(key), effect.given, {key: effect.value})


@pytest.mark.parametrize("target", FROM_RECIPE)
def test_every_argument_that_is_made_of_a_recipe_exists(target: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    make, passed = FROM_RECIPE[target], set()
    for recipe in recipes():
        if target != "trl.SFTConfig" or recipe.warmup is not None:
            passed |= {word for on in (CPU, GPU) for word in make(recipe, setting(recipe, on))}
    assert len(passed) > 5
    for name in filter(None, (target, ALSO_TRUE_OF.get(target))):
        assert list(faults(Use("a recipe", name, keywords=frozenset(passed), called=True))) == []


def test_all_of_them_are_passed_where_the_source_says_so() -> None:
    named = {use.target for use in used()}
    assert FROM_RECIPE.keys() <= named
    assert {use.target for use in used() if use.unread} <= FROM_RECIPE.keys() | HANDED_BACK


def test_every_environment_variable_is_one_that_they_read() -> None:
    variables = environment()
    table = json.loads(vllm_table.TABLE.read_text(encoding="utf-8"))["environment"]
    assert {name for name in variables if name.startswith("VLLM_")} - set(table) == set()
    assert len(variables) > len(table) >= 1
    assert _unread({name for name in variables if name.startswith("UNSLOTH_")}) == set()


def _unread(names: set[str]) -> set[str]:
    """Those that stand nowhere in Unsloth's source."""
    for library in ("unsloth_zoo", "unsloth"):
        spec = importlib.util.find_spec(library)
        assert spec and spec.submodule_search_locations
        for path in Path(spec.submodule_search_locations[0]).rglob("*.py"):
            text = path.read_bytes() if names else b""
            names = {name for name in names if name.encode() not in text}
    return names


def test_unsloth_puts_on_a_model_what_is_called_there() -> None:
    """`model.fast_generate = model.vllm_engine.generate` and the like, in functions that only run with a GPU."""
    text = "".join(installed(f"unsloth/models/{name}.py") or "" for name in ("_utils", "llama", "vision"))
    for made in ("fast_generate = model.vllm_engine.generate", "load_lora = functools.partial(load_lora, model)",
                 "save_lora = functools.partial(save_lora, model)", "vllm_engine = llm"):  # fmt: skip
        assert f"model.{made}" in text, made


# The table of vLLM ------------------------------------------------------------------------------------


def test_the_table_is_of_the_locked_vllm() -> None:
    table = json.loads(vllm_table.TABLE.read_text(encoding="utf-8"))
    assert table["version"] == vllm_table.locked(), "make lock"


@pytest.mark.skipif(vllm_table.installed() != vllm_table.locked(), reason="vLLM of the locked version is not installed")
def test_the_table_is_what_the_installed_vllm_offers() -> None:
    there = json.loads(json.dumps(vllm_table.made(installed)))  # tuples become lists, as in the file
    assert there == json.loads(vllm_table.TABLE.read_text(encoding="utf-8"))


def test_a_wheel_on_a_server_is_read_in_parts(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("vllm/filler.bin", bytes(range(256)) * 400)
        archive.writestr("vllm/envs.py", "here")
    with served(tmp_path) as (address, fetched):
        assert zipfile.ZipFile(vllm_table.Remote(f"{address}/a.whl")).read("vllm/envs.py") == b"here"  # type: ignore[arg-type]
    assert 0 < sum(fetched) < 2000


class served:
    """A folder on this machine's loopback, by ranges; the sizes of the parts that were fetched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> tuple[str, list[int]]:
        import http.server
        import threading

        folder, fetched = self.folder, []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str((folder / self.path[1:]).stat().st_size))
                self.end_headers()

            def do_GET(self) -> None:
                first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
                part = (folder / self.path[1:]).read_bytes()[first : last + 1]
                fetched.append(len(part))
                self.send_response(206)
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                self.wfile.write(part)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}", fetched

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


# That it would notice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("unsloth.FastLanguageModel.from_pretrained(model_name='m', fast_inferense=True)", "has no fast_inferense"),
        ("import_unsloth().FastLanguageModel.get_peft_model(model, rank=4)", "has no rank"),
        ("unsloth.FastLanguageModels", "there is no unsloth.FastLanguageModels"),
        ("trl.SFTTrainer(modle=1)", "trl.SFTTrainer has no modle"),
        ("trl.GRPOConfig(max_prompt_length=1)", "trl.GRPOConfig has no max_prompt_length"),
        ("(trl.SFTTrainer if model else trl.GRPOTrainer)", None),
        ("PeftModel.from_pretrained(model, 'folder', adapter='x')", "has no adapter"),
        ("LLM(model='m', kv_cache_bytes=1)", "vllm.LLM has no kv_cache_bytes"),
        ("LLM(model='m', max_num_seqs=1)", None),
        ("SamplingParams(**{'max_tokens': 1, 'top_q': 1})", "vllm.SamplingParams has no top_q"),
        ("SamplingParams(**model)", "cannot be read"),
        ("self._llm.collective_rpc('reload_weights', kwargs={'weights': 1})", "reload_weights has no weights"),
        ("self._llm.collective_rpc('load_weights_again')", "there is no vllm.v1.worker.gpu_worker.Worker.load_weights_again"),
        ("self._llm.reset_prefix_cash()", "there is no vllm.LLM.reset_prefix_cash"),
        ("model.fast_generate([], sampling=1)", "vllm.LLM.generate has no sampling"),
        ("model.load_lora('folder', tensors=True)", "load_lora has no tensors"),
        ("model.load_lora('folder', True, 1, 2)", "takes 4 arguments by place, not 5"),
        ("model.vllm_engine.llm_engine.vllm_config.cache_config.gpu_share", "CacheConfig.gpu_share"),
        ("kind = trl.GRPOTrainer\n    kind(args=1, prompts=2)", "trl.GRPOTrainer has no prompts"),
        ("class Mine(Sampler):\n        def forwards(self): pass", "there is no vllm.v1.sample.sampler.Sampler.forwards"),
        ("class Mine(base):\n        def _loss(self): return super()._compute_los(1)", "trl.GRPOTrainer._compute_los"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_noticed(line: str, fault: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "toolkit" / "engine"
    folder.mkdir(parents=True)
    imports = ["import trl", "import unsloth", "from peft import PeftModel", "from vllm import LLM, SamplingParams",
               "from vllm.v1.sample.sampler import Sampler", "from toolkit.engine.load import import_unsloth"]  # fmt: skip
    code = "\n".join([*imports, "def function(self, model, base):", f"    {line}", ""])
    (folder / "module.py").write_text(code, encoding="utf-8")
    found = [each for use in uses(tmp_path / "toolkit") for each in faults(use)]
    assert all(fault and (fault in each or "there is no" in each) for each in found)
    assert any(fault in each for each in found) if fault else found == []
