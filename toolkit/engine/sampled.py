"""How far the log-probabilities at which completions were sampled are from the trainer's: measured in the pass that trains.

Another generator rounds elsewhere, and one with stale weights is further off. TRL measures this only where it corrects for it,
with a forward pass of its own; here the loss's own log-probabilities are compared, under TRL's names, and change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolkit.parallel.collective import gathered

if TYPE_CHECKING:
    import torch

DIFFERENCE = "sampling/sampling_logp_difference"
RATIO = "sampling/importance_sampling_ratio"


def comparing_trainer(base: Any) -> Any:
    """A subclass of the trainer class `base` (trl.GRPOTrainer) that logs the comparison with every step."""

    class ComparingGRPOTrainer(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._compared: list[tuple[torch.Tensor, torch.Tensor]] = []
            super().__init__(*args, **kwargs)

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            seen: list[Any] = []
            computed = self._get_per_token_logps_and_entropies

            def noting(*args: Any, **kwargs: Any) -> Any:
                found = computed(*args, **kwargs)
                seen.append(found[0].detach())
                return found

            self._get_per_token_logps_and_entropies = noting
            try:
                loss = super()._compute_loss(model, inputs)
            finally:
                del self._get_per_token_logps_and_entropies
            # With several updates a batch the policy has moved; what it was when it sampled is kept for the ratio.
            trained = inputs.get("old_per_token_logps", seen[-1] if seen else None)
            if trained is not None and "sampling_per_token_logps" in inputs:
                self._compared.append(differences(trained, inputs["sampling_per_token_logps"], _mask(inputs)))
            return loss

        def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            if self.model.training:
                compared = [pair for part in gathered(self._compared) for pair in part]
                for name, value in (summary(compared) if compared else {}).items():
                    self._metrics["train"][name] = [value]
                self._compared = []
            super().log(logs, *args, **kwargs)

    return ComparingGRPOTrainer


def _mask(inputs: dict[str, Any]) -> Any:
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def differences(trained: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of log-probabilities, each [completions, tokens]: every token's |difference| and every completion's summed one."""
    gap = (trained - sampled) * mask
    return gap.abs()[mask.bool()].cpu(), gap.sum(dim=1).cpu()


def summary(compared: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Mean and largest difference of a token; mean and largest ratio of a completion's probabilities, trainer over sampler."""
    import torch

    tokens = torch.cat([tokens for tokens, _ in compared])
    ratios = torch.cat([summed for _, summed in compared]).exp()
    if not len(tokens):
        return {}
    return {
        f"{DIFFERENCE}/mean": float(tokens.mean()),
        f"{DIFFERENCE}/max": float(tokens.max()),
        f"{RATIO}/mean": float(ratios.mean()),
        f"{RATIO}/max": float(ratios.max()),
    }
