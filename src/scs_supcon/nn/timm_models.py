"""Facts about timm's models, and small stems for small images.

Models for images of 224 pixels start by reducing the resolution by a factor of 4, which is too much
for images of 32 pixels. `SMALL_STEMS` lists the families of timm whose first layers can be changed:

| family (module of timm) | as published | small |
|---|---|---|
| resnet: ResNet, ResNeXt, Wide ResNet, ... | 7×7 stride 2, pooling | 3×3 stride 1, no pooling |
| convnext: ConvNeXt, ConvNeXt V2 | patches of 4×4 | patches of 2×2; up to 16 pixels, of 1×1 |
| efficientnet, mobilenetv3: also MobileNetV2, MnasNet, ... | stride 2 | stride 1 |

Other families, such as TinyViT and the vision transformers, have no small stem: enlarge the images
to the size these models were trained on. This module downloads nothing.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.data_config import DataConfig
from scs_supcon.nn.own_encoder import own_data_config
from scs_supcon.plugins import is_plugin

TINY = "tiny"
# The encoders of the paper, by the names in its tables.
ALIASES = {
    "convnext_t": "convnext_tiny",
    "tinyvit_5m": "tiny_vit_5m_224",
    "tinyvit_21m": "tiny_vit_21m_224",
}
# Modules of timm with transformers, by parts of their names.
_TRANSFORMERS = re.compile(
    r"vision_transformer|vit|former|swin|beit|eva|cait|deit|^pit|volo|twins|^nest|xcit|hiera"
)


def data_config(name: str) -> DataConfig:
    """Return the image size, channel statistics and resizing that `name` was trained with."""
    if name == TINY:
        half = (0.5, 0.5, 0.5)
        return DataConfig(
            image_size=32, mean=half, std=half, interpolation="bilinear", crop_pct=1.0
        )
    if is_plugin(name):
        return own_data_config(name)
    published = pretrained_cfg(name)
    return DataConfig(
        image_size=max(published.input_size[1:]),
        mean=published.mean,
        std=published.std,
        interpolation=published.interpolation,
        crop_pct=min(published.crop_pct, 1.0),  # above 1 timm pads, which we do not
    )


def timm_name(name: str) -> str:
    """Return timm's name of an encoder; "ResNet-50" and "TinyViT-5M" are understood too."""
    plain = name.lower().replace("-", "_")
    plain = {"resnet_18": "resnet18", "resnet_50": "resnet50"}.get(plain, plain)
    return ALIASES.get(plain, plain if plain in ("resnet18", "resnet50") else name)


def is_convolutional(name: str) -> bool:
    """Return whether an encoder is a convolutional network and not a transformer."""
    return name == TINY or is_plugin(name) or not _TRANSFORMERS.search(_family(name))


def weights_licence(name: str) -> str:
    """Return the licence of the pretrained weights of `name`, or "unknown".

    The encoder "tiny" has no pretrained weights: "none".
    """
    if name == TINY:
        return "none"
    if is_plugin(name):
        return "unknown"
    return pretrained_cfg(name).license or "unknown"


def pretrained_cfg(name: str) -> Any:
    """Return timm's record of a model's weights and of the images they were trained on.

    Raises:
        UserError: timm has no such model, or no such weights for it.
    """
    timm = import_timm()
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise UserError(
            f"unknown encoder {name!r}{_close(architecture, [TINY, *timm.list_models()])} "
            f"Expected {TINY!r} or the name of a timm model."
        )
    if architecture in (renamed := timm.models.get_deprecated_models()):
        raise UserError(f"timm has renamed the encoder {name!r} to {renamed[architecture]!r}")
    published = timm.list_models(f"{architecture}.*", pretrained=True) if tag else []
    if tag and name not in published:
        raise UserError(f"timm's {architecture} has no weights {tag!r}{_close(name, published)}")
    return timm.get_pretrained_cfg(name)


def import_timm() -> Any:
    """Import timm when an encoder is needed: it is large, and the losses do not need it."""
    try:
        with _without_compiler():
            import timm
    except ImportError:  # not installed, or a version that needs the compiler
        try:
            import timm
        except ImportError as error:
            raise UserError("encoders need timm: pip install 'scs-supcon[train]'") from error
    return timm


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Do not import torch's compiler, which takes longer than timm itself and is not used.

    torchvision only needs a function of it that says which devices it supports, for operators of
    object detection; timm marks functions that it must not compile if `torch.compiler.disable`
    exists.
    """
    name = "torch._dynamo.utils"
    if name in sys.modules or "torchvision" in sys.modules:
        yield
        return
    substitute: Any = ModuleType(name)
    substitute.is_compile_supported = lambda device_type: False
    disable, compiler = torch.compiler.disable, cast("Any", torch.compiler)
    sys.modules[name], compiler.disable = substitute, None
    try:
        yield
    finally:
        del sys.modules[name]
        compiler.disable = disable


@dataclass(frozen=True)
class Stem:
    """The first layers of an encoder.

    Attributes:
        text: description. It is part of the key of cached features.
        replaced: modules that published weights do not fit. If only a stride has changed, the
            published weights still fit and are used.
    """

    text: str = "as published"
    replaced: tuple[str, ...] = ()


def has_small_stem(name: str) -> bool:
    """Return whether `name` can be built with a small stem; "tiny" cannot."""
    return name != TINY and not is_plugin(name) and _family(name) in SMALL_STEMS


def shrink_stem(name: str, body: nn.Module, in_size: int) -> Stem:
    """Replace the first layers of `body`, timm's model `name`, for images of `in_size` pixels."""
    if not has_small_stem(name):
        size = data_config(name)["image_size"]
        raise UserError(
            f"encoder {name!r} has no small stem (available for {', '.join(SMALL_STEMS)}): "
            f"set encoder.small_stem=false and data.image_size={size} to enlarge the images"
        )
    return SMALL_STEMS[_family(name)](body, in_size)


def _family(name: str) -> str:
    pretrained_cfg(name)  # raises a UserError for an unknown name
    module: str = import_timm().model_entrypoint(name).__module__
    return module.rpartition(".")[2]


def _resnet(body: Any, in_size: int) -> Stem:
    body.maxpool = nn.Identity()
    three_convolutions = isinstance(body.conv1, nn.Sequential)  # the "d" variants
    if three_convolutions:
        body.conv1[0].stride = (1, 1)
        return Stem("stride 1, no pooling", replaced=("maxpool",))
    body.conv1 = nn.Conv2d(3, body.conv1.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
    return Stem("3×3 stride 1, no pooling", replaced=("conv1", "maxpool"))


def _convnext(body: Any, in_size: int) -> Stem:
    first = body.stem[0]
    if first.stride == (2, 2):  # the "ols" variants: two overlapping convolutions
        first.stride = (1, 1)
        return Stem("stride 2 in all")
    patch = 1 if in_size <= 16 else 2
    body.stem[0] = nn.Conv2d(3, first.out_channels, patch, patch, bias=first.bias is not None)
    nn.init.trunc_normal_(body.stem[0].weight, std=0.02)
    if first.bias is not None:
        nn.init.zeros_(body.stem[0].bias)
    return Stem(f"patches of {patch}×{patch}", replaced=("stem.0",))


def _conv_stem(body: Any, in_size: int) -> Stem:
    body.conv_stem.stride = (1, 1)
    return Stem("stride 1")


SMALL_STEMS: dict[str, Callable[[Any, int], Stem]] = {
    "resnet": _resnet,
    "convnext": _convnext,
    "efficientnet": _conv_stem,
    "mobilenetv3": _conv_stem,
}


def _close(name: str, options: list[str]) -> str:
    matches = get_close_matches(name, options, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else "."
