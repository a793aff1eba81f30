"""Measures the merge against copying the same files and against PEFT's `merge_and_unload`: time and peak memory.

    python scripts/bench_merge.py [--parameters 3.2e9] [--rounds 3] [--folder /tmp] [--json FILE]

Base and adapter are made up, with the shapes of Llama 3.2 3B. The three take turns, each in a process of its own, so that
what else the machine does meets all of them alike. Medians, and their ratios to copying, are what to read.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH, FEED_FORWARD, HEADS, KV_HEADS, HEAD, VOCABULARY = 3072, 8192, 24, 8, 128, 128256
RANK, ALPHA = 16, 32
SHARD_BYTES = 5_000_000_000
WAYS = ("copy", "merge", "peft")


def projections() -> dict[str, tuple[int, int]]:
    """Rows and columns of a layer's matrices."""
    return {
        "self_attn.q_proj": (HEADS * HEAD, WIDTH), "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
        "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * HEAD),
        "mlp.gate_proj": (FEED_FORWARD, WIDTH), "mlp.up_proj": (FEED_FORWARD, WIDTH),
        "mlp.down_proj": (WIDTH, FEED_FORWARD),
    }  # fmt: skip


def layers_for(parameters: float) -> int:
    """How many layers come nearest to so many parameters."""
    per_layer = sum(rows * columns for rows, columns in projections().values())
    return max(1, round((parameters - VOCABULARY * WIDTH) / per_layer))


def make(folder: Path, layers: int) -> None:
    """A sharded checkpoint in `base/` and an adapter for all its projections in `adapter/`."""
    import torch

    shapes = {"model.embed_tokens.weight": (VOCABULARY, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(layers):
        path = f"model.layers.{layer}."
        shapes |= {f"{path}{name}.weight": shape for name, shape in projections().items()}
        shapes |= {f"{path}{name}.weight": (WIDTH,) for name in ("input_layernorm", "post_attention_layernorm")}
    base, adapter = folder / "base", folder / "adapter"
    base.mkdir()
    write_shards(base, shapes)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD, "num_hidden_layers": layers, "num_attention_heads": HEADS, "head_dim": HEAD,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (base / "config.json").write_text(json.dumps(config), encoding="utf-8")
    torch.manual_seed(1)
    factors = {}
    for layer in range(layers):
        for name, (rows, columns) in projections().items():
            path = f"base_model.model.model.layers.{layer}.{name}"
            factors[f"{path}.lora_A.weight"] = torch.randn(RANK, columns) * columns**-0.5
            factors[f"{path}.lora_B.weight"] = torch.randn(rows, RANK) * 0.01
    from safetensors.torch import save_file

    adapter.mkdir()
    save_file(factors, adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0}
    names = sorted({name.rpartition(".")[2] for name in projections()})
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"target_modules": names}), encoding="utf-8")


def write_shards(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Random bf16 numbers as safetensors shards, one tensor in memory at a time."""
    import math

    import torch

    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes.items():
        size += 2 * math.prod(shape)
        if size > SHARD_BYTES:
            shards.append({})
            size = 2 * math.prod(shape)
        shards[-1][name] = shape
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, shape in shard.items():
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at := at + 2 * math.prod(shape)]}
        text = json.dumps(header).encode()
        with file.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for shape in shard.values():
                numbers = torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02)
                out.write(numbers.view(torch.uint8).numpy().data)
        weight_map |= dict.fromkeys(shard, file.name)
    total = sum(2 * math.prod(shape) for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def copy(base: Path, _: Path, out: Path) -> None:
    """The base's weights, flushed to the disk as the merge flushes them."""
    for file in sorted(base.glob("*.safetensors*")):
        shutil.copyfile(file, out / file.name)
        with (out / file.name).open("rb+") as handle:
            os.fsync(handle.fileno())


def merge(base: Path, adapter: Path, out: Path) -> None:
    from toolkit.export.merge import merge as ours

    ours(base, adapter, out)


def peft(base: Path, adapter: Path, out: Path) -> None:
    """As its documentation shows it, in the base's own type."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    merged: Any = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    merged.save_pretrained(out, max_shard_size="5GB")


def imported(way: str) -> None:
    """What the way needs, loaded before the clock starts."""
    sys.path.insert(0, str(ROOT))
    if way == "merge":
        import torch  # noqa: F401

        from toolkit.export import merge as _  # noqa: F401
    if way == "peft":
        import peft  # noqa: F401
        import transformers  # noqa: F401


def work(way: str, folder: Path, out: Path) -> None:
    """The measured process: does one thing and prints the seconds that it took, imports not counted."""
    imported(way)
    done: dict[str, Callable[[Path, Path, Path], None]] = {"copy": copy, "merge": merge, "peft": peft}
    begin = time.perf_counter()
    done[way](folder / "base", folder / "adapter", out)
    print(f"\nseconds {time.perf_counter() - begin:.2f}")


def measure(way: str, folder: Path) -> dict[str, float]:
    """Seconds of the work, and the peak memory of its process (resident pages of files that it maps included), in GB."""
    out = Path(tempfile.mkdtemp(prefix=f"{way}-", dir=folder))
    command = [sys.executable, __file__, "--work", way, "--folder", str(folder), "--out", str(out)]
    with tempfile.TemporaryFile("w+") as noise:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=noise, text=True)
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)  # unlike Popen.wait it tells this process's own peak
        process.returncode = os.waitstatus_to_exitcode(status)
        shutil.rmtree(out)
        if process.returncode:
            noise.seek(0)
            raise SystemExit(f"{way} failed:\n{noise.read()[-2000:]}")
    return {"seconds": float(said.rpartition("seconds ")[2]), "peak_gb": usage.ru_maxrss * 1024 / 1e9}


def report(runs: dict[str, list[dict[str, float]]], size_gb: float) -> dict[str, Any]:
    """Medians and ratios, printed as a table."""
    result: dict[str, Any] = {"weights_gb": round(size_gb, 2), "rounds": len(runs["copy"]), "ways": {}}
    base = statistics.median(run["seconds"] for run in runs["copy"])
    print(f"\n{size_gb:.2f} GB of weights, medians of {len(runs['copy'])} rounds")
    print(f"{'':8}{'seconds':>9}{'to copying':>12}{'peak GB':>9}")
    for way, measured in runs.items():
        seconds = statistics.median(run["seconds"] for run in measured)
        peak = max(run["peak_gb"] for run in measured)
        print(f"{way:8}{seconds:9.1f}{seconds / base:12.2f}{peak:9.2f}")
        each = [round(run["seconds"], 2) for run in measured]
        result["ways"][way] = {
            "seconds": round(seconds, 2), "to_copying": round(seconds / base, 3), "peak_gb": round(peak, 3), "each": each,
        }  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parameters", type=float, default=3.2e9)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--work", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    layers = layers_for(arguments.parameters)
    if arguments.work:
        work(arguments.work, arguments.folder, arguments.out)
        return
    if arguments.make:
        make(arguments.folder, layers)
        return
    with tempfile.TemporaryDirectory(prefix="bench-merge-", dir=arguments.folder) as name:
        folder = Path(name)
        own = [sys.executable, __file__, "--parameters", str(arguments.parameters)]
        subprocess.run([*own, "--make", "--folder", name], check=True)  # this process stays small: children inherit
        size = sum(file.stat().st_size for file in (folder / "base").glob("*.safetensors"))
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for number in range(arguments.rounds):
            for way in WAYS:
                runs[way].append(measure(way, folder))
                print(f"round {number + 1}: {way} {runs[way][-1]['seconds']:.1f} s", flush=True)
    result = report(runs, size / 1e9)
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
