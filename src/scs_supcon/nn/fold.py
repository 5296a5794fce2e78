"""Fold batch normalisation into the convolutions before it, which makes encoders faster.

In evaluation mode, batch normalisation is a fixed scale and shift of every channel. A convolution
can do both by itself. The features differ in the last bits, as after any change of the order of
sums.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from scs_supcon.nn.encoder import Encoder, TappedEncoder
from scs_supcon.plugins import is_plugin

TOLERANCE = 1e-3  # of the largest feature; folded encoders differ by about 1e-6


def has_foldable_norms(encoder: nn.Module) -> bool:
    """Return whether `fold_norms` may change the last bits of an encoder's features."""
    source = encoder.encoder if isinstance(encoder, TappedEncoder) else encoder
    if not isinstance(source, Encoder) or is_plugin(source.name):
        return False  # the user's own code may depend on its layers
    return any(isinstance(module, nn.BatchNorm2d) for module in source.modules())


def fold_norms(encoder: nn.Module) -> nn.Module:
    """Return an encoder in evaluation mode without the batch normalisation of convolutions.

    One image is encoded to see which normalisation follows which convolution, and another time to
    check the result. If the features differ, the encoder is returned as it is.

    Args:
        encoder: in evaluation mode; it is not changed.
    """
    if not has_foldable_norms(encoder):
        return encoder
    folded = copy.deepcopy(encoder)
    source = cast("Encoder", folded.encoder if isinstance(folded, TappedEncoder) else folded)
    parameter = next(source.parameters())
    shape = (1, 3, source.in_size, source.in_size)
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(parameter)
    with torch.no_grad(), _record_pairs(source.body) as pairs:
        before = source(image)
    for convolution, norm in pairs:
        name, bare_name = (_name_of(source.body, module) for module in (convolution, norm))
        _replace(source.body, name, fuse_conv_bn_eval(convolution, norm))
        _replace(source.body, bare_name, _without_norm(norm))
    with torch.no_grad():
        after = source(image)
    same = torch.allclose(after, before, rtol=0, atol=TOLERANCE * float(before.abs().max()))
    return folded.to(memory_format=torch.channels_last) if same else encoder


@contextmanager
def _record_pairs(body: nn.Module) -> Iterator[list[tuple[nn.Conv2d, nn.BatchNorm2d]]]:
    """Yield a list that collects each convolution whose output a normalisation receives."""
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []
    outputs: list[tuple[nn.Conv2d, Tensor]] = []  # keeps them alive, so that identities are unique

    def after_convolution(module: nn.Module, _: Any, output: Tensor) -> None:
        outputs.append((cast("nn.Conv2d", module), output))

    def before_norm(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        for convolution, output in outputs:
            if output is inputs[0]:
                pairs.append((convolution, cast("nn.BatchNorm2d", module)))

    with ExitStack() as hooks:
        for module in body.modules():
            if isinstance(module, nn.Conv2d):
                hooks.callback(module.register_forward_hook(after_convolution).remove)
            elif isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                hooks.callback(module.register_forward_pre_hook(before_norm).remove)
        yield pairs


def _without_norm(norm: nn.BatchNorm2d) -> nn.Module:
    """Return what is left of a normalisation: timm's have dropout and an activation, too."""
    rest = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]
    return nn.Sequential(*rest) if rest else nn.Identity()


def _name_of(body: nn.Module, searched: nn.Module) -> str:
    names: Iterator[str] = (name for name, module in body.named_modules() if module is searched)
    return next(names)


def _replace(body: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(body.get_submodule(parent), attribute, module)
