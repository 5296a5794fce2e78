"""Notices learnable scalars that the optimiser was not given."""

import warnings
from functools import partial

from torch import Tensor, nn

PATIENCE = 50


class Watch:
    """Warns once about parameters that had 50 gradients and never moved."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.seen: dict[str, int] = {}

    def look(self, name: str, parameter: nn.Parameter, value: Tensor) -> None:
        """Count the gradients of `value`, which this step has made from `parameter`."""
        if not value.requires_grad or self.seen.get(name, 0) >= PATIENCE:
            return
        self.first.setdefault(name, float(parameter.detach()))
        value.register_hook(partial(self._count, name, parameter))  # type: ignore[no-untyped-call]

    def _count(self, name: str, parameter: nn.Parameter, gradient: Tensor) -> None:
        if not float(gradient) or self.seen.get(name, 0) >= PATIENCE:
            return
        moved = float(parameter.detach()) != self.first[name]
        self.seen[name] = PATIENCE if moved else self.seen.get(name, 0) + 1
        if not moved and self.seen[name] == PATIENCE:
            self.seen = dict.fromkeys(self.first, PATIENCE)  # said once, for all of them
            warnings.warn(
                f"{name} of the loss had a gradient in {PATIENCE} backward passes and never moved: "
                "give the loss's parameters to the optimiser, for example "
                "SGD([*model_groups, *loss.param_groups(lr=...)])",
                stacklevel=2,
            )
