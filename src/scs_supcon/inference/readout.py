"""Features to readout: float64 on the CPU, and always as many rows at a time.

The last bits of a matrix product depend on its shape. With one shape, what comes of an image does
not depend on how many others there are.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.inference.facts import Readout
from scs_supcon.nn.head import fields, unit
from scs_supcon.recipe import HeadRecipe

ROWS = 64


@dataclass(frozen=True)
class Network:
    """From views to features to embeddings; `readout` says which of them the classifier sees."""

    encoder: nn.Module
    head: nn.Module | None
    readout: Readout


class ReadOut:
    """From features (n, F) to what the classifier sees of them (n, D), and the style field."""

    def __init__(self, network: Network, recipe: HeadRecipe) -> None:
        self.head: nn.Module | None = None
        self._recipe = recipe
        self._whole = network.readout == "embeddings"
        if network.readout != "features":
            if network.head is None:
                raise UserError(f"the readout is {network.readout}, but there is no head")
            self.head = copy.deepcopy(network.head).cpu().double().eval()

    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return (readout, style); style has no columns where the method knows no fields."""
        features = features.cpu().double()
        if self.head is None:
            return features, features[:, :0]
        with torch.no_grad():
            embeddings = self.head(features)
        if self._whole:
            return unit(embeddings), embeddings[:, :0]
        return fields(embeddings, self._recipe.common_dim, self._recipe.overlap)


def in_passes(work: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor) -> tuple[Tensor, ...]:
    """Apply `work` to rows of numbers, 64 at a time; zeros fill the last pass."""
    passes = []
    for start in range(0, max(1, len(rows)), ROWS):
        some = rows[start : start + ROWS].detach()
        full = some.new_zeros(ROWS, *some.shape[1:])
        full[: len(some)] = some
        passes.append([part[: len(some)] for part in work(full)])
    return tuple(torch.cat(parts) for parts in zip(*passes, strict=True))
