"""A warning about learnable scalars that never change."""

import gc
import warnings
from functools import partial

import torch
from torch import Tensor

PATIENCE = 50


class UnusedParameterCheck:
    """Warn once about parameters that received 50 gradients and never changed.

    Values are compared on their device after 50 backward passes, not read at every step.
    """

    def __init__(self) -> None:
        self.initial: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}  # number of gradients other than 0
        self.remaining: dict[str, int] = {}  # backward passes until the next look

    def track(self, name: str, parameter: Tensor, value: Tensor) -> None:
        """Count the gradients of `value`, which this step computed from `parameter`."""
        if not value.requires_grad or self.remaining.get(name, 1) <= 0:
            return
        if name not in self.initial:
            self.initial[name] = parameter.detach().clone()
            self.gradients[name] = torch.zeros_like(parameter, dtype=torch.long)
            self.remaining[name] = PATIENCE
        value.register_hook(partial(self._count, name, parameter))  # type: ignore[no-untyped-call]

    def _count(self, name: str, parameter: Tensor, gradient: Tensor | None) -> None:
        if gradient is None or self.remaining[name] <= 0:
            return
        self.gradients[name] += gradient.detach() != 0
        self.remaining[name] -= 1
        if self.remaining[name]:
            return
        if not torch.equal(parameter.detach(), self.initial[name].to(parameter)):
            return
        self.remaining[name] = PATIENCE - int(self.gradients[name])
        if self.remaining[name] <= 0:
            self.remaining = dict.fromkeys(self.initial, 0)  # one warning for all
            warnings.warn(
                f"{name} of the loss received {PATIENCE} gradients and never changed: "
                f"{_cause(parameter)}",
                stacklevel=2,
            )


def _cause(parameter: Tensor) -> str:
    """Return why a parameter does not change, and what to do."""
    groups = [
        group
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.optim.Optimizer)
        for group in thing.param_groups
        if any(p is parameter for p in group["params"])
    ]
    if not groups:
        return (
            "no optimiser has it. Pass the parameters of the loss to the optimiser, for example "
            "SGD([*model_groups, *loss.param_groups(lr=...)])"
        )
    rates = [float(group.get("lr", 0)) for group in groups]
    if not any(rates):
        return "its learning rate is 0. Give it a group with a learning rate: loss.param_groups(lr)"
    if parameter.grad is None or not bool(parameter.grad.any()):
        return (
            "its gradient is cleared before the optimiser's step. Call optimizer.zero_grad() "
            "before backward() or after step()"
        )
    return (
        f"the optimiser has it with learning rate {max(rates):g}, but step() is not called, or the "
        f"steps are too small for {str(parameter.dtype).removeprefix('torch.')}. Raise lr_t and "
        "lr_b, or keep the parameters of the loss in float32"
    )
