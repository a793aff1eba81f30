"""How far each GGUF type may be from the merged model, and where the numbers come from. Only data.

docs/export.md explains every limit in words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits of the KL divergence per token (nats), lower limit of equal top tokens, range of the training's share in
    the weights, and the fewest bits that a matrix of this type has."""

    mean_kl: float
    p99_kl: float
    top1: float
    share: tuple[float, float]
    least_bits: float


SIXTEEN_BITS = (0.98, 1.02)
QUANTISED = (0.5, 2.0)
"""Share of what training changed that is found in the weights. For right files 1.000 was measured in 16 bits and 0.74 to 1.56 in
fewer (0.95 to 1.03 where the base's weights had not been in 4 bits before); for files made from the base at most 0.004. Outside lie
only files whose type rounded the training away: on a base that was made from Q4_1, q4_1 keeps 0.03 to 0.07 of it, and q5_k_m with an
importance matrix 0.11. Such a file is the base, and fails."""

LIMITS: dict[str, Limits] = {
    # type                mean  p99   top1
    "f32": Limits(1e-4, 2e-3, 0.98, SIXTEEN_BITS, 32),
    "f16": Limits(1e-4, 2e-3, 0.98, SIXTEEN_BITS, 16),
    "bf16": Limits(1e-3, 2e-2, 0.97, SIXTEEN_BITS, 16),
    "q8_0": Limits(2e-2, 0.4, 0.88, QUANTISED, 8.5),
    "q6_k": Limits(4e-2, 0.8, 0.85, QUANTISED, 6.5),
    "q5_k_m": Limits(1.2, 20, 0.70, QUANTISED, 5.5),
    "q5_k_s": Limits(1.2, 20, 0.70, QUANTISED, 5.5),
    "q5_1": Limits(1.2, 20, 0.70, QUANTISED, 6),
    "q5_0": Limits(0.3, 4, 0.70, QUANTISED, 5.5),
    "q4_k_m": Limits(0.3, 4, 0.70, QUANTISED, 4.5),
    "q4_k_s": Limits(0.3, 4, 0.70, QUANTISED, 4.5),
    "q4_1": Limits(0.8, 8, 0.60, QUANTISED, 5),
    "q4_0": Limits(0.8, 8, 0.60, QUANTISED, 4.5),
    "iq4_nl": Limits(0.8, 8, 0.60, QUANTISED, 4.5),
    "iq4_xs": Limits(0.8, 8, 0.60, QUANTISED, 4.2),
    "q3_k_l": Limits(0.6, 8, 0.60, QUANTISED, 3.4),
    "q3_k_m": Limits(0.6, 8, 0.60, QUANTISED, 3.4),
    "q3_k_s": Limits(0.8, 8, 0.60, QUANTISED, 3.4),
    "iq3_m": Limits(2.5, 20, 0.35, QUANTISED, 3.4),
    "iq3_s": Limits(2.5, 20, 0.35, QUANTISED, 3.4),
    "iq3_xs": Limits(2.5, 20, 0.35, QUANTISED, 3),
    "iq3_xxs": Limits(2.5, 20, 0.35, QUANTISED, 2.5),
    "q2_k": Limits(2.5, 20, 0.35, QUANTISED, 2.6),
    "q2_k_s": Limits(2.5, 20, 0.35, QUANTISED, 2.6),
    "iq2_m": Limits(2.5, 20, 0.35, QUANTISED, 2.5),
    "iq2_s": Limits(2.5, 20, 0.35, QUANTISED, 2.3),
    "iq2_xs": Limits(2.5, 20, 0.35, QUANTISED, 2.3),
    "iq2_xxs": Limits(2.5, 20, 0.35, QUANTISED, 2),
    "iq1_m": Limits(2.5, 20, 0.35, QUANTISED, 1.7),
    "iq1_s": Limits(2.5, 20, 0.35, QUANTISED, 1.5),
    "tq2_0": Limits(2.5, 20, 0.35, QUANTISED, 2),
    "tq1_0": Limits(2.5, 20, 0.35, QUANTISED, 1.6),
    "q2_0": Limits(2.5, 20, 0.35, QUANTISED, 2.2),
    "q1_0": Limits(2.5, 20, 0.35, QUANTISED, 1.1),
    "mxfp4_moe": Limits(0.8, 8, 0.60, QUANTISED, 4.2),
}

ROW_ERRORS: dict[str, float] = {
    "F32": 1e-6, "F16": 2e-3, "BF16": 5e-3, "Q8_0": 0.03, "Q6_K": 0.1, "Q5_K": 0.12, "Q5_1": 0.2, "Q5_0": 0.25, "Q4_K": 0.25,
    "Q4_1": 0.25, "Q4_0": 0.4, "IQ4_NL": 0.35, "IQ4_XS": 0.3, "MXFP4": 0.4, "NVFP4": 0.4, "Q3_K": 0.45, "IQ3_S": 0.5,
    "IQ3_XXS": 0.5, "Q2_K": 0.65, "IQ2_S": 0.75, "IQ2_XS": 0.8, "IQ2_XXS": 0.95, "IQ1_M": 2.0, "IQ1_S": 0.95, "TQ2_0": 0.98,
    "TQ1_0": 0.98, "Q2_0": 0.95, "Q1_0": 0.9,
}  # fmt: skip
"""Largest error of a row by the tensor's type. Above what was measured over all rows of SmolLM2 and of random weights, with and
without an importance matrix, by a factor of two where there is room below 1: 0.014 for Q8_0, 0.057 for Q6_K, 0.089 for Q4_K,
0.19 for Q4_0, 0.22 for Q3_K, 0.45 for Q2_K, 0.38 for IQ3_XXS, 0.55 for IQ2_S, 0.58 for IQ2_XS, 0.81 for IQ2_XXS, 0.76 for IQ1_S,
1.8 for IQ1_M (rows of small weights). A row of zeros has an error of 1, half a row 0.7. The ternary types and Q1_0 are made for
models that were trained for them; of other models they keep next to nothing (0.95), and the predictions refuse them."""

PREDICTIONS = (0.9, 1.1)
"""The training's share measured on predictions; 16 bits give 1.000."""

NEARER = 0.5
"""KL to the merged model over KL to the base, for quantised files: 0.13 at most for right files of a well-trained model, above
1 for files of the base."""

LORA_SHARE, LORA_ERROR = (0.98, 1.02), 0.1
"""Share of the adapter's change that the product of a GGUF LoRA's factors is, over all modules, and the error of one module over
its length. The factors are fp32 and nearly exact; what is left is the base's own fp32 rounding in the change. Half a scale would
be 0.5."""

WHY = {
    "mean_kl": "mean KL(merged fp32 ‖ file) per token; a right file of this type stays several times below",
    "p99_kl": "99th percentile of the same; catches damage that shows on few tokens",
    "top1": "how often both find the same next token likeliest",
    "share": "share of what training changed that is in the file's weights: 0 is the base, 1 the merged model",
    "steps": "the rows are the merged model's as well as this type can hold them: what training changed is smaller than its steps. "
    "Leave the type out: export.gguf=[f32] loses nothing of the merged weights",
    "left": "with the adapter taken away, beyond what 16 bits had rounded off it: 0 is the base, 1 the merged model",
    "lora": "share of the adapter's change that the factors make, with llama.cpp's scale",
    "rows": "largest error of any row of weights, over its length, by the tensors' true types: more is damage, not rounding",
    "bos": "a prompt never begins with two begin tokens, and with one where llama.cpp adds it",
    "stops": "no token that ends generation is blank, a line break or an answer tag",
    "rounded": "the merge itself is exact: most of what was learned is smaller than the steps of 16-bit numbers and is rounded "
    "away. toolkit export RUN export.merged_dtype=float32 keeps it, in GGUF files of the type f32 as well; or train longer "
    "(grpo.max_steps) or at a higher rate (grpo.learning_rate)",
    "unmerged": "or use the adapter unmerged, from adapter/ (for llama.cpp: export.lora_gguf=true)",
    "chance": "chance of as many losses if none is real (McNemar, exact)",
}

UNDECIDED = 0.15
"""Standard error above which a share of the training tells nothing. It happens after a few tiny steps of training."""

MERGED_KL = 1e-2
"""Merged model against what was trained (base + adapter through PEFT, or all weights), both in fp32: only the rounding of the
merged weights to bf16 lies between them (1.1e-4 measured after 20 supervised steps, 1.9e-3 after 10, where the model is less sure).
An adapter that was lost or halved costs a hundred times more, and its share in the weights is checked apart."""

SHARE, ROUNDED_SHARE = (0.8, 1.25), (0.5, 1.5)
"""The training's share of the way that the merged model's predictions went; the second where the weights are the exact merge to
their last place, so that all that is missing was rounded away. 0.84 was measured on the default recipe, whose changes are small
beside the steps of 16 bits. Below a half the folder is nearer to the base than to what was trained."""

JUDGED_KL = 2e-4
"""A training that moves predictions less than this is not weighed by them: 16-bit rounding alone moves
them by 2e-5."""

CHANGED = 1e-7
"""Tuned against base, both in fp32 on one machine: equal weights give exactly 0."""

CHANCE = 0.01
"""A file fails where it loses so many answers against the merged model that chance would do it once in a
hundred."""

RECOMMENDED_KL = 0.05
"""The smallest file is recommended only below this mean KL. In llama.cpp's own table (tools/perplexity/README.md, Llama 3 8B on
Wikitext) q4_k_m lies at 0.031, q4_k_s at 0.043, and q4_0 and q4_1 at 0.072, where perplexity is 7 % worse."""
