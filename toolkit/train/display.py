"""What a person sees while it trains: a live panel on a terminal, plain lines elsewhere. It records nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from toolkit import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from toolkit.health import Finding
    from toolkit.recipe import Recipe

LOSS_NOTE = "GRPO's loss starts near zero and stays there; it is no sign of progress. Watch the reward."


class Display:
    """The progress of one training."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._live: Any = None
        self._seconds: list[float] = []
        self._silent: set[str] = set()
        self._heldout: str | None = None

    def __enter__(self) -> Display:
        if console.is_live():
            from rich.live import Live

            self._live = Live(console=console.out, refresh_per_second=2, transient=False)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.__exit__(*error)

    def warmup(self, metrics: dict[str, Any]) -> None:
        """Show a supervised step."""
        assert self._recipe.warmup is not None
        total = self._recipe.warmup.max_steps
        self._show(
            self._bar("warm-up", metrics["step"], total, {"loss": f"{metrics['loss']:.3f}"}),
            f"warm-up {metrics['step']}/{total}  loss {metrics['loss']:.3f}",
            last=metrics["step"] == total,
        )

    def step(self, metrics: dict[str, Any]) -> None:
        """Show a GRPO step."""
        if not self._seconds:
            console.say(LOSS_NOTE)
        self._seconds.append(metrics["seconds"])
        self._warn_of_silence(metrics)
        total = self._recipe.grpo.max_steps
        facts = self._facts(metrics, total)
        line = f"step {metrics['step']}/{total}  " + "  ".join(f"{name} {value}" for name, value in facts.items())
        self._show(self._bar("GRPO", metrics["step"], total, facts), line)

    def findings(self, findings: Sequence[Finding]) -> None:
        """What the run doctor says of the run for the first time."""
        for finding in findings:
            knob = f" (try {console.untrusted(finding.knob)})" if finding.knob else ""
            console.warn(f"{console.untrusted(finding.message)}{knob}; more: toolkit doctor RUN")

    def heldout(self, line: dict[str, Any], lines: Sequence[dict[str, Any]]) -> None:
        """Show an evaluation during training; `lines`: all of them so far. The live panel has it from its next step on."""
        key, digits = ("accuracy", ".1%") if "accuracy" in line else ("reward", ".3g")
        known = [other[key] for other in lines if other[key] is not None]
        self._heldout = f"{_shown(line[key], digits)} (best {_shown(max(known, default=None), digits)})"
        if not self._live:
            console.out.print(f"held out after step {line['step']}: {key} {self._heldout}", markup=False)

    def _warn_of_silence(self, metrics: dict[str, Any]) -> None:
        """Once for each reward."""
        for name, share in metrics.get("abstained", {}).items():
            if share == 1 and name not in self._silent:
                self._silent.add(name)
                console.warn(
                    f"the reward {name} could judge none of the completions of step {metrics['step']}: "
                    "they earn nothing from it, and nothing is learned from it"
                )

    def _facts(self, metrics: dict[str, Any], total: int) -> dict[str, str]:
        recent = self._seconds[-10:]
        left = (total - metrics["step"]) * sum(recent) / len(recent)
        resampled = {"drawn again": f"{metrics['resampled_groups']} (+{metrics['resampled_completions']} completions)"}
        return {
            "reward": f"{_shown(metrics['reward'], '.2f')} ± {_shown(metrics['reward_std'], '.2f')}",
            "no spread": _shown(metrics["dead_groups"], ".0%"),
            **(resampled if self._recipe.grpo.resample_rounds else {}),
            "length": _shown(metrics["completion_length"], ".0f"),
            "cut off": _shown(metrics["cut_off"], ".0%"),
            **({"held out": self._heldout} if self._live and self._heldout else {}),
            "tokens/s": f"{metrics['tokens_per_second']:.0f}",
            "left": str(timedelta(seconds=round(left))),
        }

    def _bar(self, title: str, step: int, total: int, facts: dict[str, str]) -> RenderableType:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 3))
        for _ in facts:
            grid.add_column(justify="right")
        grid.add_row(*(f"[dim]{name}[/]" for name in facts))
        grid.add_row(*(f"[bold]{value}[/]" for value in facts.values()))
        whole = Table.grid(padding=(0, 0))
        whole.add_row(ProgressBar(total=total, completed=step, width=60))
        whole.add_row(grid)
        return Panel.fit(whole, title=f"{title} {step}/{total}", title_align="left")

    def _show(self, panel: RenderableType, line: str, *, last: bool = False) -> None:
        """`last`: another panel takes this one's place, so it is left above it."""
        if self._live:
            self._live.update(panel, refresh=True)
            if last:
                console.out.print(panel)
        else:
            console.out.print(line, markup=False)


def _shown(value: float | None, digits: str) -> str:
    """Null where a step generated nothing, or nothing could be judged."""
    return "–" if value is None else format(value, digits)
