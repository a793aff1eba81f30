"""How far each GGUF type may be from the merged model. One table, with where its numbers come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits of the KL divergence per token (nats), lower limit of equal top tokens, and range of
    the adapter."""

    mean_kl: float
    p99_kl: float
    top1: float
    adapter: tuple[float, float]


SIXTEEN_BITS = (0.98, 1.02)
QUANTISED = (0.5, 2.0)
"""Share of the adapter's change found in the weights: 0.90 to 1.53 was measured for right files, at most
0.004 for files made from the base. The upper values come from a base whose weights lay on a 4-bit grid
already."""

LIMITS: dict[str, Limits] = {
    # type                mean  p99   top1                 measured mean KL: little trained, well trained
    "f32": Limits(1e-4, 2e-3, 0.98, SIXTEEN_BITS),  #      1.1e-5  2.4e-7
    "f16": Limits(1e-4, 2e-3, 0.98, SIXTEEN_BITS),  #      1.3e-5  7.2e-7
    "bf16": Limits(1e-3, 2e-2, 0.97, SIXTEEN_BITS),  #     1.3e-4  6.5e-6
    "q8_0": Limits(2e-2, 0.4, 0.88, QUANTISED),  #         4.8e-3  4.8e-4
    "q6_k": Limits(4e-2, 0.8, 0.85, QUANTISED),  #         8.7e-3  6.5e-4
    "q5_k_m": Limits(0.3, 4.0, 0.70, QUANTISED),  #        9.3e-2  7.5e-2
    "q5_k_s": Limits(0.3, 4.0, 0.70, QUANTISED),
    "q5_1": Limits(0.3, 4.0, 0.70, QUANTISED),
    "q5_0": Limits(0.3, 4.0, 0.70, QUANTISED),
    "q4_k_m": Limits(0.3, 4.0, 0.70, QUANTISED),  #        6.0e-2  8.2e-3
    "q4_k_s": Limits(0.3, 4.0, 0.70, QUANTISED),
    "q4_1": Limits(0.8, 6.0, 0.60, QUANTISED),
    "q4_0": Limits(0.8, 6.0, 0.60, QUANTISED),  #          0.27    8.1e-2
    "q3_k_l": Limits(0.6, 6.0, 0.60, QUANTISED),
    "q3_k_m": Limits(0.6, 6.0, 0.60, QUANTISED),  #        0.16    2.5e-2
    "q3_k_s": Limits(0.8, 6.0, 0.60, QUANTISED),
    "q2_k": Limits(1.2, 8.0, 0.50, QUANTISED),  #          0.40    4.1e-2
}
"""Measured 2026-11-30 on SmolLM2-135M-Instruct, some 480 tokens of arithmetic answers, llama.cpp 0c1e570 on one
thread of an x86-64 CPU: once with a small random LoRA (the model is as unsure as the base), once after 20
supervised steps (it is sure of most tokens). Mean limits are 3 to 8 times the larger of the two, tail limits 4 to
30 times. This model is small and falls back from k-quants; larger ones stay further below. q5 is not better than
q4 where the base came from a 4-bit file."""

PREDICTIONS = {SIXTEEN_BITS: (0.9, 1.1), QUANTISED: (0.6, 1.6)}
"""The same share measured on predictions: 1.000 for 16 bits, 0.83 to 1.21 for right quantised files."""

WHY = {
    "mean_kl": "mean KL(merged fp32 ‖ file) per token; a right file of this type stays several times below",
    "p99_kl": "99th percentile of the same; catches damage that shows on few tokens",
    "top1": "how often both find the same next token likeliest",
    "adapter": "share of the adapter's change that is in the file's weights: 0 is the base, 1 the merged model",
}

MERGED_KL = 1e-2
"""Merged model against base + adapter through PEFT, both in fp32: only the rounding of the merged weights to bf16 lies
between them (1.1e-4 measured after 20 supervised steps, 1.9e-3 after 10, where the model is less sure). An adapter that
was lost or halved costs a hundred times more, and its share in the weights is checked apart."""

JUDGED_KL = 2e-4
"""An adapter that moves predictions less than this is not weighed by them: 16-bit rounding alone moves
them by 2e-5."""

CHANGED = 1e-7
"""Tuned against base, both in fp32 on one machine: equal weights give exactly 0."""

CHANCE = 0.01
"""A file fails where it loses so many answers against the merged model that chance would do it once in a
hundred."""
