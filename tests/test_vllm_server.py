"""A vLLM server draws what the model in training would, with the weights that are trained, and is looked at beforehand.

The server is a stand-in around a real tiny model (vllm_stand_in.py); the real one is in test_vllm_server_real.py. TRL's client is
real, and wants vLLM: what needs it is skipped where that is not installed, failing there with REQUIRE_VLLM=1.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

import unsloth_side
import vllm_remote_side as side
from contract_sources import installed
from models import child_environment, small_recipe
from run_files import lines
from toolkit.atomic import read_json
from toolkit.cli import main
from toolkit.engine import vllm_server
from toolkit.engine.completions import Completion, Sampling
from toolkit.engine.machine import Machine, resolve
from toolkit.engine.vllm_server import Served, command, way
from toolkit.errors import EngineError, RecipeError
from toolkit.preflight.finding import Finding
from toolkit.preflight.vllm_server import server_findings, way_findings
from toolkit.recipe import Recipe, load_recipe
from toolkit.recipe.schema import Eval
from toolkit.rundir import RunDir
from vllm_stand_in import StandIn, serving

pytest_plugins = ("shared",)
NO_VLLM = importlib.util.find_spec("vllm") is None and os.environ.get("REQUIRE_VLLM") != "1"
needs_vllm = pytest.mark.skipif(NO_VLLM, reason="vLLM, which TRL's client needs, is not installed")

Call = Callable[..., Any]
CPU = Machine("cpu", True, "a CPU", 2, 16.0, vllm=True)
GPU = Machine("cuda", True, "a GPU", 8, 64.0, vllm=True)
ELSEWHERE, HERE = "http://10.0.0.5:8000", "http://127.0.0.1:8000"
SERVED = Served("0.31.0", "org/base", "org/base", 1024, 1, "cuda", None, "processed_logprobs", "nccl")
EXACT = 1e-3
"""Nats or logits, in float32: what two ways of adding up the same products differ by."""
STALE = 0.5
SAMPLING = Sampling(max_new_tokens=12, temperature=0.9, top_k=40, stop_token_ids=tuple(range(0, 256, 9)))


@pytest.fixture
def server(tiny_checkpoint: Path) -> Iterator[StandIn]:
    with serving(tiny_checkpoint) as stand_in:
        yield stand_in


@pytest.fixture
def there(unsloth_process: Call) -> Call:
    """`unsloth_process`, with keywords."""
    return lambda function, *arguments, **named: unsloth_process(partial(function, **named), *arguments)


def recipe_of(server: StandIn, **model: Any) -> Recipe:
    return small_recipe(str(server.folder), model={"vllm_server": server.url} | model)


def ids_of(rows: list[Completion]) -> list[list[int]]:
    return [row.token_ids for row in rows]


# --- the recipe


@pytest.mark.parametrize(
    "address",
    ["http://me:geheim@host:8000", "http://host:8000?token=geheim", "ftp://geheim", "me:geheim@host", "http://geheim/v1",
     "http://0.0.0.0:8000"],
)  # fmt: skip
def test_an_address_that_cannot_be_used_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("smoke", [f"model.vllm_server={address}"])
    assert "geheim" not in str(caught.value) and "model.vllm_server" in str(caught.value)


@pytest.mark.parametrize(
    "others",
    [["model.fast_inference=true"], ["model.standby=true"], ["model.load_in_8bit=true", "model.load_in_4bit=false"],
     ["model.full_finetuning=true", "model.load_in_4bit=false"]],
)  # fmt: skip
def test_what_does_not_go_with_a_server_is_refused(others: list[str]) -> None:
    with pytest.raises(RecipeError, match="vLLM as a server"):
        load_recipe("smoke", ["model.vllm_server=http://10.0.0.5:8000", *others])
    assert load_recipe("smoke", ["model.vllm_server=http://10.0.0.5:8000/"]).recipe.model.vllm_server == ELSEWHERE


@pytest.mark.parametrize("machine", [CPU, GPU, replace(CPU, vllm=False), replace(GPU, processes=4)])
def test_a_server_draws_whatever_this_machine_is(machine: Machine) -> None:
    setting = resolve(small_recipe("org/base", model={"vllm_server": ELSEWHERE}), machine)
    assert setting.generator == "server"
    assert not [change for change in setting.changes if change.key == "model.fast_inference"]


@pytest.mark.parametrize(
    ("source", "address", "words"),
    [
        ("org/base", ELSEWHERE, "trl vllm-serve --model org/base --port 8000 --max_model_len 128"),
        ("org/base", "http://127.0.0.1", "trl vllm-serve --model org/base --host 127.0.0.1 --port 8000 --max_model_len 128"),
        ("org/base-bnb-4bit", "http://gpu2:9000", "trl vllm-serve --model org/base --port 9000 --max_model_len 128"),
    ],
)  # fmt: skip
def test_the_command_for_the_server_fits_the_recipe(source: str, address: str, words: str) -> None:
    assert command(small_recipe(source, model={"vllm_server": address})) == words


# --- what is said beforehand


def told(recipe: Recipe, **details: Any) -> dict[str, Finding]:
    return {finding.what: finding for finding in server_findings(recipe, details)}


def test_a_server_as_it_should_be_has_nothing_to_mend(server: StandIn) -> None:
    details: dict[str, Any] = {}
    found = list(server_findings(recipe_of(server), details))
    assert {finding.status for finding in found} == {"ok"} and len(found) > 3
    assert details["vllm_server"]["workers"] == 1
    assert str(server.folder) not in json.dumps(details), "a manifest may be published"


def test_no_server_is_said_at_once_with_the_command_that_starts_one() -> None:
    begun = time.monotonic()
    found = told(small_recipe("org/base", model={"vllm_server": "http://127.0.0.1:9"}))
    (only,) = found.values()
    assert only.status == "failed" and only.hint and "trl vllm-serve --model org/base" in only.hint
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize(
    ("changes", "what", "status", "said"),
    [
        ({"name": "another"}, "model", "warning", "of the same shapes"),
        ({"quantization": "bitsandbytes"}, "model", "failed", "quantised"),
        ({"context": 64}, "context", "failed", "64 tokens"),
        ({"version": "0.25.1"}, "version", "warning", "0.25.1 there"),
        ({"logprobs": "raw_logprobs"}, "log-probabilities", "failed", "raw_logprobs"),
        ({"in_pieces": True}, "chunked prefill", "failed", "in pieces"),
    ],
)
def test_a_server_that_is_not_the_recipes_is_said(
    changes: dict[str, Any], what: str, status: str, said: str, tiny_checkpoint: Path
) -> None:
    if what == "version" and NO_VLLM:
        pytest.skip("no version to compare with")
    with serving(tiny_checkpoint, **changes) as server:
        recipe = recipe_of(server)
        if "name" in changes:
            server.folder = Path(str(tiny_checkpoint) + "/")  # the same files
            recipe = small_recipe(_copied(tiny_checkpoint), model={"vllm_server": server.url})
        found = told(recipe)[what]
    assert found.status == status and said in found.value and found.hint


def _copied(folder: Path) -> str:
    import shutil

    copy = folder.with_name("same-model")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    return str(copy)


def test_another_model_is_known_by_its_shapes(server: StandIn, tmp_path: Path) -> None:
    config = json.loads((server.folder / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 640}), encoding="utf-8")
    found = told(small_recipe(str(tmp_path), model={"vllm_server": server.url}))["model"]
    assert found.status == "failed" and "hidden_size 64 instead of 640" in found.value


def test_a_key_is_sent_and_never_shown(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tiny_checkpoint, key="geheim") as server:
        recipe = recipe_of(server)
        (refused,) = told(recipe).values()
        assert refused.status == "failed" and refused.hint and "VLLM_API_KEY" in refused.hint
        monkeypatch.setenv("VLLM_API_KEY", "geheim")
        found = told(recipe)
        assert "model" in found and "geheim" not in str(found)
        main(["check", "smoke", f"model.vllm_server={server.url}", "--json"])
    assert "geheim" not in "".join(capsys.readouterr())


def test_a_key_that_would_go_over_the_network_unencrypted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "geheim")
    monkeypatch.setattr(vllm_server, "look", lambda address: SERVED)
    found = told(small_recipe("org/base", model={"vllm_server": ELSEWHERE}))
    assert found["VLLM_API_KEY"].status == "warning"
    assert "VLLM_API_KEY" not in told(small_recipe("org/base", model={"vllm_server": HERE}))


def test_a_server_without_vllms_dev_mode_takes_no_weights(tiny_checkpoint: Path) -> None:
    with serving(tiny_checkpoint, dev=False) as server:
        (found,) = told(recipe_of(server)).values()
    assert found.status == "failed" and "VLLM_SERVER_DEV_MODE" in found.value


@pytest.mark.parametrize(
    ("served", "address", "machine", "found"),
    [
        (SERVED, ELSEWHERE, GPU, "nccl"),
        (SERVED, HERE, GPU, "nccl"),
        (SERVED, HERE, CPU, "files"),
        (replace(SERVED, device="cpu"), HERE, GPU, "files"),
        (SERVED, ELSEWHERE, CPU, "without a GPU here weights go over as files"),
        (replace(SERVED, device="cpu"), ELSEWHERE, GPU, "without a GPU there"),
        (replace(SERVED, transfer=None), ELSEWHERE, GPU, "without a way to receive weights"),
        (SERVED, HERE, replace(CPU, vllm=False), "needs the package vllm here"),
    ],
)
def test_weights_have_a_way_or_it_is_said_why_not(served: Served, address: str, machine: Machine, found: str) -> None:
    try:
        assert way(served, address, machine) == found
    except EngineError as error:
        assert found in error.message


def test_an_own_address_that_the_server_cannot_reach_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.1")
    assert way(SERVED, HERE, GPU) == "nccl"
    with pytest.raises(EngineError, match="VLLM_HOST_IP is 127"):
        way(SERVED, ELSEWHERE, GPU)


def test_the_own_address_is_the_one_on_the_way_to_the_server() -> None:
    assert vllm_server.own_address("http://127.0.0.1:8000") == "127.0.0.1"


def test_without_a_gpu_a_server_elsewhere_stops_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "look", lambda address: SERVED)
    recipe = small_recipe("org/base", model={"vllm_server": ELSEWHERE})
    assert [finding.status for finding in way_findings(recipe, CPU)] == ["failed"]
    assert [finding.status for finding in way_findings(recipe, GPU)] == ["ok"]


def test_a_training_without_its_server_ends_before_anything_is_loaded(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "toolkit", "train", "smoke", "model.vllm_server=http://127.0.0.1:9"]
    ended = subprocess.run(words, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "no vLLM server answers there" in ended.stderr
    assert not list(tmp_path.glob("runs/*/adapter"))


# --- drawing


@needs_vllm
def test_the_server_follows_every_change_of_the_adapter(there: Call, server: StandIn) -> None:
    assert max(there(side.followed, recipe_of(server), 2)) < EXACT
    assert len(server.reloads) == 3, "equal weights are not handed over twice"
    first, *later = map(set, server.reloads)
    assert "model.embed_tokens.weight" in first and all(names < first for names in later)


@needs_vllm
def test_weights_that_are_not_handed_over_are_noticed(there: Call, server: StandIn) -> None:
    """The sabotage of the test above."""
    assert there(side.stale, recipe_of(server)) > STALE


@needs_vllm
def test_a_4_bit_base_is_handed_over_as_it_is_trained_on(there: Call, server: StandIn) -> None:
    """The server has the 16-bit weights, which differ by the rounding to 4 bits."""
    assert max(there(side.followed, recipe_of(server, load_in_4bit=True), 1)) < EXACT


@needs_vllm
def test_the_proof_before_a_training(there: Call, tiny_checkpoint: Path) -> None:
    with serving(tiny_checkpoint) as server:
        apart, apart_from_base = there(side.proven, recipe_of(server))
    assert apart < EXACT and apart_from_base > 100 * EXACT
    with serving(tiny_checkpoint, deaf=True) as server:
        assert "does not answer as the model in training" in there(side.proven, recipe_of(server))


@needs_vllm
def test_log_probabilities_are_the_trainers(there: Call, server: StandIn) -> None:
    found = there(side.logprob_differences, recipe_of(server), SAMPLING)
    assert len(found) > 60 and max(found) < EXACT


@needs_vllm
def test_a_draw_depends_on_seed_prompt_and_sample_alone(there: Call, server: StandIn) -> None:
    calls = [{"samples": 2, "seed": 4}, {"samples": 2, "seed": 4, "batch_rows": 2},
             {"samples": 2, "seed": 4, "part": (3, None), "first": 3}, {"samples": 2, "seed": 5}]  # fmt: skip
    whole, small, half, other = map(ids_of, there(side.drawn, recipe_of(server), SAMPLING, calls))
    assert whole == small and half == whole[6:] and other != whole
    assert len({tuple(ids) for ids in whole}) == len(whole)


@needs_vllm
def test_greedy_answers_come_first_and_a_stopped_draw_goes_on(there: Call, server: StandIn) -> None:
    draws = {"samples": 2, "seed": 4, "greedy_too": True, "batch_rows": 6}
    (whole,) = there(side.drawn, recipe_of(server), SAMPLING, [dict(draws)])
    assert [row.prompt_index for row in whole] == [index for index in range(6) for _ in range(3)]
    asked = [body for path, body in server.asked if path == "/v1/completions"]
    assert [body["temperature"] for body in asked].count(0.0) == 6
    assert there(side.resumed, recipe_of(server), SAMPLING, 2, **draws) == whole


@needs_vllm
def test_answers_end_at_the_recipes_stop_tokens_which_they_hold(there: Call, server: StandIn) -> None:
    (rows,) = there(side.drawn, recipe_of(server), SAMPLING, [{"samples": 4, "seed": 1}])
    for row in rows:
        stopped = [token in SAMPLING.stop_token_ids for token in row.token_ids]
        assert sum(stopped[:-1]) == 0 and row.truncated != stopped[-1] and len(row.logprobs) == len(row.token_ids)
        assert len(row.token_ids) == 12 or stopped[-1]
    assert {row.truncated for row in rows} == {True, False}


@needs_vllm
def test_in_a_training_only_the_adapter_is_the_servers_to_draw(there: Call, server: StandIn) -> None:
    found = there(side.taken, recipe_of(server))
    assert found == {"adapter": True, "base meanwhile": False, "base alone": True, "too long": False}


@needs_vllm
def test_weights_that_somebody_else_changed_stop_the_training(there: Call, server: StandIn) -> None:
    change = partial(requests.post, f"{server.url}/update_weight_version", json={"new_version": "theirs"})
    assert "somebody else changed its weights" in there(side.after, recipe_of(server), change)


@needs_vllm
def test_a_server_that_is_busy_with_others_is_said(there: Call, tiny_checkpoint: Path) -> None:
    with serving(tiny_checkpoint, busy=True) as server:
        policy = partial(side.followed, recipe_of(server), 0)
        assert "busy with somebody else's requests" in there(side.refusal, policy)


@needs_vllm
def test_a_second_process_waits_for_the_first_ones_weights(there: Call, server: StandIn) -> None:
    same, waited, mine = there(side.second_process, recipe_of(server))
    assert same and "has not handed the weights over" in waited
    assert len(server.reloads) == 1 and server.weights != mine


def test_an_evaluation_goes_on_without_the_server(there: Call, tiny_checkpoint: Path) -> None:
    recipe = small_recipe(str(tiny_checkpoint), model={"vllm_server": "http://127.0.0.1:9", "fast_inference": False})
    generator, changes = there(side.without, recipe)
    assert generator == "transformers" and ("model.vllm_server", None) in changes


def test_one_of_several_processes_does_not_go_on_without_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolkit.engine.vllm_remote import connected

    recipe = small_recipe("org/base", model={"vllm_server": "http://127.0.0.1:9"})
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match="no vLLM server answers"):
        connected(recipe, CPU, resolve(recipe, CPU))


@needs_vllm
def test_what_requests_and_trl_raise_names_the_server() -> None:
    from toolkit.engine.vllm_remote import _answered

    def failing(error: Exception) -> Any:
        raise error

    for error, said in [(requests.ConnectionError("x"), "no longer answers"), (requests.Timeout("x"), "in time"),
                        (Exception("Request failed: 400, no"), "refuses: Request failed: 400, no")]:  # fmt: skip
        with pytest.raises(EngineError, match=said) as caught:
            _answered(HERE, partial(failing, error))
        assert caught.value.where == HERE


@needs_vllm
def test_a_training_draws_its_rollouts_and_evaluations_from_the_server(there: Call, server: StandIn) -> None:
    recipe = recipe_of(server).model_copy(update={"eval": Eval(rows=4, samples=2, every=1, every_rows=2)})
    found = there(unsloth_side.train_tiny, recipe)
    assert found["raised"] is None, found
    assert len(server.reloads) == 4  # the proof's, the warm-up's, and one after each step
    asked = [body for path, body in server.asked if path == "/v1/completions"]
    prompts, held_out = recipe.grpo.max_steps * recipe.grpo.prompts_per_step, 3 * 2
    assert [body["n"] for body in asked].count(4) == prompts and len(asked) == 1 + prompts + held_out
    run = RunDir(Path(found["run"]))
    manifest = read_json(run.manifest)
    assert manifest["preflight"]["vllm_server"]["workers"] == 1
    steps = [line for line in lines(run) if line["stage"] == "grpo"]
    assert max(line["logp_difference_max"] or 0 for line in steps) < EXACT


# --- the pinned libraries


def test_vllm_has_the_routes_that_are_asked() -> None:
    if NO_VLLM:
        pytest.skip("vLLM's source is not here")
    dev = "vllm/entrypoints/serve/dev"
    text = "".join(installed(f"{dev}/{name}/api_router.py") or "" for name in ("rlhf", "rpc", "cache", "server_info"))
    for route in ('get("/weight_info")', 'post("/update_weight_version")', 'get("/get_world_size")',
                  'post("/collective_rpc")', 'post("/reset_prefix_cache")', 'get("/server_info")'):  # fmt: skip
        assert f"@router.{route}" in text, route


def test_trl_serves_as_the_client_expects() -> None:
    """What `trl vllm-serve` passes to vLLM without being told, and the words of our command."""
    text = installed("trl/scripts/vllm_serve.py") or ""
    for word in ('"processed_logprobs"', '"--weight-transfer-config"', '{"backend": "nccl"}', "VLLM_SERVER_DEV_MODE",
                 "    model: str", "    revision: str", "    host: str", "    port: int", "    max_model_len: int"):  # fmt: skip
        assert word in text, word
