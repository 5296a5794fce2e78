"""A warning about learnable scalars that were not passed to the optimiser."""

import warnings
from functools import partial

from torch import Tensor

PATIENCE = 50


class UnusedParameterCheck:
    """Warn once about parameters that received 50 gradients and never changed."""

    def __init__(self) -> None:
        self.initial: dict[str, float] = {}
        self.gradients: dict[str, int] = {}

    def track(self, name: str, parameter: Tensor, value: Tensor) -> None:
        """Count the gradients of `value`, which this step computed from `parameter`."""
        if not value.requires_grad or self.gradients.get(name, 0) >= PATIENCE:
            return
        self.initial.setdefault(name, float(parameter.detach()))
        value.register_hook(partial(self._count, name, parameter))  # type: ignore[no-untyped-call]

    def _count(self, name: str, parameter: Tensor, gradient: Tensor | None) -> None:
        if gradient is None or not float(gradient) or self.gradients.get(name, 0) >= PATIENCE:
            return
        changed = float(parameter.detach()) != self.initial[name]
        self.gradients[name] = PATIENCE if changed else self.gradients.get(name, 0) + 1
        if not changed and self.gradients[name] == PATIENCE:
            self.gradients = dict.fromkeys(self.initial, PATIENCE)  # one warning for all
            warnings.warn(
                f"{name} of the loss received {PATIENCE} gradients and never changed: pass the "
                "parameters of the loss to the optimiser, for example "
                "SGD([*model_groups, *loss.param_groups(lr=...)])",
                stacklevel=2,
            )
