"""The lean trainer in several processes: gradients averaged before each optimiser step, metrics over all processes.

Torch's DistributedDataParallel averages inside the backward pass of its own forward pass, which the lean trainer goes round,
and it leaves passes out where no completion has an advantage: processes would wait for each other in different places.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toolkit.parallel.collective import average_gradients, gathered


def averaging_trainer(base: Any) -> Any:
    """A subclass of the lean trainer `base`, for one of several processes."""

    class AveragingGRPOTrainer(base):
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            with _by_itself(self.accelerator):
                return super()._compute_loss(model, inputs)

        def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            with self.accelerator.no_sync(model):
                loss = super().training_step(model, *args, **kwargs)
            if self.accelerator.sync_gradients:
                average_gradients(self.model.parameters())
            return loss

        def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            """Every process's values, before TRL takes their means: what was global before has the same mean then."""
            for mode, metrics in self._metrics.items():
                parts = gathered(dict(metrics))
                for name in sorted({name for part in parts for name in part}):
                    metrics[name] = [value for part in parts for value in part.get(name, [])]
                self._metrics[mode] = metrics
            super().log(logs, *args, **kwargs)

    return AveragingGRPOTrainer


@contextmanager
def _by_itself(accelerator: Any) -> Iterator[None]:
    """The accelerator's questions to other processes, answered by this one: not all of them ask."""
    accelerator.gather, accelerator.reduce = _same, _same
    try:
        yield
    finally:
        del accelerator.gather, accelerator.reduce


def _same(value: Any, *_: Any, **__: Any) -> Any:
    return value
