"""Parameter groups for any optimiser, in which t and b are not decayed."""

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor, nn

ParameterGroup: TypeAlias = dict[str, Sequence[Tensor] | float]
"""`params`, and optionally `lr` and `weight_decay`, as the optimisers of torch expect."""


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[ParameterGroup]:
    """Return two groups of parameters: matrices with weight decay, all others without.

    The others are biases, the weights of normalisation layers, and t and b of a loss, which decay
    would pull towards 1 and 0. timm's optimisers and the Hugging Face Trainer leave out t and b by
    their names; for other loops and optimisers:

        optimizer = AdamW(weight_decay_groups(model, 0.05), lr=1e-3)

    Args:
        model: contains the loss if t and b are learned.
        weight_decay: of the matrices.
    """
    learnable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in learnable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in learnable if p.ndim <= 1], "weight_decay": 0.0},
    ]
