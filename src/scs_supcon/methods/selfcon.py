"""SelfCon: the exits of one network are the views of a picture (Bae et al., AAAI 2023).

    L = (1/n) Σ_i (−1/|P_i|) Σ_{p∈P_i} log [ exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ]

SupCon over n = B·(K+1) rows: of each picture, seen in one view, the embedding z = g(h) and K exits
ω_k = g_k(A_k pool(t_k)), where t_k is what the encoder holds after an inner stage, A_k a linear
layer to the width of the features and g_k a projection of its own. All rows are anchors and of unit
length; nothing is detached. The exits serve training only.

Where to tap: an encoder may have `taps`, a dictionary from the name of a submodule to the channels
of its output, such as {"layer2": 128}; maps are averaged over space, tokens over their sequence.
Ours: of an encoder without taps, and of cached features that hold none, the features themselves
are tapped, so that only the heads of the two exits differ. The original multiplies the loss by
τ/0.07.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.heads import Projection
from scs_supcon.methods.base import Batch, Task, flatten
from scs_supcon.methods.joint import JointMethod, positive, supcon
from scs_supcon.methods.parts import like, ready


class SelfCon(JointMethod):
    """SupCon between the exits of one network; `forward` takes `(B, exits, D)`.

    Args:
        temperature: τ; similarities are divided by it.
        gather_across_devices: hold the rows against those of all processes.
    """

    views = 1

    def __init__(self, temperature: float = 0.1, *, gather_across_devices: bool = False) -> None:
        super().__init__(gather_across_devices=gather_across_devices)
        positive(temperature=temperature)
        self.temperature = temperature
        self.exits: nn.ModuleList | None = None
        self.widths: list[int] = []

    def for_task(self, task: Task) -> Self:
        """Make an exit for each tap of the encoder."""
        self.widths = list(taps_of(task.network.encoder, task.features).values())
        self.exits = nn.ModuleList(
            nn.Sequential(nn.Linear(width, task.features), Projection(task.features, task.dim))
            for width in self.widths
        ).to(like(task.network))
        return self

    def judge(self, rows: Tensor, labels: Tensor, views: int) -> dict[str, Tensor]:
        return {"contrast": supcon(rows, labels, self.temperature)}

    def losses(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        exits = ready(self, self.exits)
        encoder: Any = network.encoder
        with tapped(encoder, self.widths) as taps:
            embeddings = network(batch.images).embeddings
        labels = self.everyone(batch.labels)
        rows = [self.everyone(flatten(embeddings, batch.labels)[0])]
        for way, tap in zip(exits, taps, strict=True):
            rows.append(way(self.everyone(torch.cat(tap)).to(rows[0].dtype)))
        return self.judge(torch.cat(rows), labels.repeat(len(rows)), len(rows))


def taps_of(encoder: nn.Module, features: int) -> dict[str, int]:
    """Names and widths of the tapped submodules; "" is the encoder itself."""
    taps: dict[str, int] = dict(getattr(encoder, "taps", None) or {"": features})
    known = dict(encoder.named_modules())
    for name in taps:
        if name not in known:
            raise UserError(f"the encoder taps {name!r}, and has no submodule of that name")
    return taps


@contextmanager
def tapped(encoder: nn.Module, widths: list[int]) -> Iterator[list[list[Tensor]]]:
    """Collect what the taps put out, pooled to `(n, width)`, while the encoder runs."""
    caught: list[list[Tensor]] = [[] for _ in widths]
    handles = []
    for name, width, into in zip(taps_of(encoder, widths[0]), widths, caught, strict=True):
        hook = _catch(into, width)
        handles.append(encoder.get_submodule(name).register_forward_hook(hook))
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()


def _catch(into: list[Tensor], width: int) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        into.append(pool(output, width))

    return hook


def pool(x: Tensor, width: int) -> Tensor:
    """Average `(n, C, H, W)`, `(n, H, W, C)` or `(n, L, C)` to `(n, C)`; `(n, C)` stays."""
    if x.dim() == 4 and x.shape[1] == width:
        return x.mean((2, 3))
    if x.shape[-1] == width:
        return x.flatten(1, -2).mean(1) if x.dim() > 2 else x
    raise UserError(
        f"a tap of the encoder gave {tuple(x.shape)}: its `taps` promise {width} channels"
    )
