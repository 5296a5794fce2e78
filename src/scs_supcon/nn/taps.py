"""Taps: intermediate outputs of an encoder, averaged over the image.

The attribute `taps` of an encoder maps names of submodules to the channels of their outputs, such
as {"body.layer2": 128}. Taps cost nothing unless `record_taps` is used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from scs_supcon.errors import UserError


def taps_of(encoder: nn.Module, features: int) -> dict[str, int]:
    """Return names and widths of the taps; "", the encoder itself, if there are none."""
    taps: dict[str, int] = dict(getattr(encoder, "taps", None) or {"": features})
    submodules = dict(encoder.named_modules())
    for name in taps:
        if name not in submodules:
            raise UserError(f"the encoder lists the tap {name!r}, but has no such submodule")
    return taps


@contextmanager
def record_taps(encoder: nn.Module, widths: list[int]) -> Iterator[list[list[Tensor]]]:
    """Yield one list per tap, to which each run of the encoder appends the output `(n, width)`."""
    outputs: list[list[Tensor]] = [[] for _ in widths]
    handles = []
    for name, width, collected in zip(taps_of(encoder, widths[0]), widths, outputs, strict=True):
        hook = _collect(collected, width)
        handles.append(encoder.get_submodule(name).register_forward_hook(hook))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _collect(collected: list[Tensor], width: int) -> Callable[[nn.Module, Any, Tensor], None]:
    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        collected.append(pool(output, width))

    return hook


def pool(x: Tensor, width: int) -> Tensor:
    """Average `(n, C, H, W)`, `(n, H, W, C)` or `(n, L, C)` to `(n, C)`; `(n, C)` is unchanged."""
    if x.dim() == 4 and x.shape[1] == width:
        return x.mean((2, 3))
    if x.shape[-1] == width:
        return x.flatten(1, -2).mean(1) if x.dim() > 2 else x
    raise UserError(
        f"a tap of the encoder returned shape {tuple(x.shape)}, but `taps` lists {width} channels"
    )
