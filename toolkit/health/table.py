"""The table of rules: what is looked at, from which value on it is a finding, how grave, who says so. Checks stand elsewhere.

"Beginning" and "end" are means over a quarter of the steps so far, 3 to 10 of them. docs/doctor.md is written from this table.
"""

from __future__ import annotations

from toolkit.health import checks, reward_checks, text_checks
from toolkit.health.finding import Finding, Rule
from toolkit.health.records import Records, read
from toolkit.rundir import RunDir

_HERE = "measured here"
_DAPO = "https://arxiv.org/abs/2503.14476"
_DR_GRPO = "https://arxiv.org/abs/2503.20783"
_TRL = "https://huggingface.co/docs/trl/grpo_trainer"

RULES = (
    Rule(
        "gradient-not-finite", "error", "gradient norm and loss", 1.0, "one step with nan or infinity",
        "arithmetic", "docs/recipes.md", checks.not_finite,
    ),
    Rule(
        "gradient-zero", "error", "gradient norm", 0.0, "exactly 0 in every step, at least 5",
        "GRPO, arXiv 2402.03300, eq. 3: without differing rewards every advantage is 0",
        "https://arxiv.org/abs/2402.03300", checks.always_zero,
    ),
    Rule(
        "learning-rate-too-small", "error", "change of the trained weights, of their size", 1e-4,
        "at most 0.01 % after the run (0.001 % of all weights)",
        f"{_HERE}: 1 to 6 % of adapters in runs that learned; of all weights chosen", "docs/recipes.md", checks.small_learning_rate,
    ),
    Rule(
        "no-spread", "warning", "share of groups without spread in their rewards", 0.8, "at least 80 % at the end",
        f"effect: DAPO, arXiv 2503.14476, section 3.2; figure {_HERE}: up to 56 % in runs that learned",
        _DAPO, checks.no_spread,
    ),
    Rule(
        "cut-off", "warning", "share of completions that are cut off", 0.5, "at least 50 % at the end",
        f"effect: DAPO, arXiv 2503.14476, section 3.4 (reward noise of cut completions); figure {_HERE}: up to 46 %",
        _DAPO, text_checks.cut_off,
    ),
    Rule(
        "length-exploding", "warning", "completion length, end over beginning", 2.0,
        "at least 2 times as long, and the reward did not rise",
        "effect: Dr. GRPO, arXiv 2503.20783, section 3.1 (long wrong answers); figure chosen",
        _DR_GRPO, text_checks.exploding,
    ),
    Rule(
        "length-collapsing", "warning", "completion length, end over beginning", 1 / 3,
        "at most a third as long, and the reward did not rise",
        "effect: Dr. GRPO, arXiv 2503.20783, section 3.1 (short right answers weigh more); figure chosen",
        _DR_GRPO, text_checks.collapsing,
    ),
    Rule(
        "entropy-collapse", "warning", "entropy, end over beginning", 0.05,
        "at most 5 % is left, and the task is not solved",
        "effect: arXiv 2505.22617 (73 % of it is spent in the first twelfth of a run, and the gain with it); "
        f"figure {_HERE}: 12 to 14 % was left in runs that learned",
        "https://arxiv.org/abs/2505.22617", checks.entropy_collapse,
    ),
    Rule(
        "kl-run-away", "warning", "KL against the base, rise in nats a token", 1.0, "a rise of at least 1 nat a token",
        "effect: arXiv 2210.10760 (beyond some distance more reward is less quality); figure chosen: sampled tokens are "
        "then e times as likely as in the base",
        "https://arxiv.org/abs/2210.10760", checks.kl_run_away,
    ),
    Rule(
        "clip-ratio", "warning", "share of clipped ratios", 0.1,
        "at least 10 % at the end (30 % with ratios per sequence)",
        "effect: PPO, arXiv 1707.06347; GSPO, arXiv 2507.18071, sees two orders of magnitude more per sequence than per "
        "token; figure chosen",
        _TRL, checks.high_clip_ratio,
    ),
    Rule(
        "sampled-elsewhere", "warning", "log-probabilities, sampled against trained, nats a token", 0.2,
        "at least 0.2 at the end, without top_p, top_k, min_p and a repetition penalty",
        f"effect: AReaL, arXiv 2505.24298 (what naive training on stale samples costs); figure {_HERE}: up to 0.05 in bfloat16",
        "docs/fast-inference.md", checks.sampled_elsewhere,
    ),
    Rule(
        "duplicates", "warning", "share of completions that repeat another of their group", 0.9,
        "at least 90 % at the end, and the task is not solved",
        f"{_HERE}: up to 66 % in runs that learned", _DAPO, text_checks.duplicates,
    ),
    Rule(
        "reward-never-fired", "warning", "a reward's values", 0.0, "never above its least, in all steps, at least 5",
        "GRPO, arXiv 2402.03300, eq. 3: what is equal for all has no advantage", "docs/rewards.md",
        reward_checks.never_fired,
    ),
    Rule(
        "reward-always-fires", "warning", "a reward's values", 0.0, "the same pay for all, in all steps, at least 5",
        "GRPO, arXiv 2402.03300, eq. 3: what is equal for all has no advantage", "docs/rewards.md",
        reward_checks.always_fires,
    ),
    Rule(
        "one-reward-dominates", "warning", "weighted spread within groups that have any, widest over second", 10.0,
        "at least 10 times as wide, the second not learned yet",
        "effect: GDPO, arXiv 2601.05242; figure chosen: the others are then below 1 % of the variance",
        "https://arxiv.org/abs/2601.05242", reward_checks.dominating,
    ),
    Rule(
        "format-only", "warning", "rise of correctness, of its range", 0.05,
        "less than 5 %, below half of its pay, every other reward above 90 % of its own, after 20 steps",
        f"{_HERE}: 13 to 22 % in runs that learned", "docs/rewards.md", reward_checks.format_only,
    ),
    Rule(
        "reward-hacking", "error", "fall of held-out accuracy while the reward rises", 0.05,
        "at least 5 points below its best, and two standard errors",
        "effect: arXiv 2210.10760 (overoptimisation of a proxy); figure chosen", "https://arxiv.org/abs/2210.10760",
        reward_checks.hacking,
    ),
    Rule(
        "slowing-down", "warning", "tokens per second, end over best", 0.5,
        "at most half, lengths and live groups being alike",
        f"{_HERE}: above 66 % in runs that had the machine nearly for themselves", "docs/recipes.md", checks.slowing_down,
    ),
    Rule(
        "loss-near-zero", "note", "size of the loss", 0.01, "at most 0.01: normal, and explained",
        "GRPO, arXiv 2402.03300, eq. 3: a group's advantages add up to 0; TRL's documentation", _TRL,
        checks.loss_near_zero,
    ),
)  # fmt: skip


def examine(records: Records) -> list[Finding]:
    """All findings about these records: errors first, then warnings, then notes; each in the table's order."""
    found = [finding for rule in RULES for finding in rule.apply(records)]
    return sorted(found, key=lambda finding: ("error", "warning", "note").index(finding.severity))


def diagnose(run: RunDir) -> list[Finding]:
    """All findings about a run's folder. A ToolkitError where it holds no run."""
    return examine(read(run))
