"""What an encoder holds half-way: the output of inner submodules, averaged over the image.

An encoder names its taps in `taps`, a dictionary from a submodule to the channels of its output,
such as {"body.layer2": 128}. Nothing is tapped, and nothing paid for, until someone asks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from scs_supcon.errors import UserError


def taps_of(encoder: nn.Module, features: int) -> dict[str, int]:
    """Names and widths of the tapped submodules; without any, "" is the encoder itself."""
    taps: dict[str, int] = dict(getattr(encoder, "taps", None) or {"": features})
    known = dict(encoder.named_modules())
    for name in taps:
        if name not in known:
            raise UserError(f"the encoder taps {name!r}, and has no submodule of that name")
    return taps


@contextmanager
def tapped(encoder: nn.Module, widths: list[int]) -> Iterator[list[list[Tensor]]]:
    """Collect what the taps put out, pooled to `(n, width)`, each time that the encoder runs."""
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
