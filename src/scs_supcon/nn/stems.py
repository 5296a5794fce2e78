"""First layers for small images.

Models for 224 pixels begin by shrinking the image four times; of 32 pixels that leaves too
little. `SMALL_STEMS` lists the families of timm whose first layers can be changed:

| family (module of timm) | as published | small |
|---|---|---|
| resnet: ResNet, ResNeXt, Wide ResNet, ... | 7×7 stride 2, pooling | 3×3 stride 1, no pooling |
| convnext: ConvNeXt, ConvNeXt V2 | patches of 4×4 | patches of 2×2; up to 16 pixels, of 1×1 |
| efficientnet, mobilenetv3: also MobileNetV2, MnasNet, ... | stride 2 | stride 1 |

Others, such as TinyViT and the vision transformers, are left as they are: they need their images
enlarged to the size they were made for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.catalogue import data_config, import_timm, pretrained_cfg
from scs_supcon.nn.tiny import TINY


@dataclass(frozen=True)
class Stem:
    """What the first layers are now.

    Attributes:
        text: For people.
        replaced: Modules that published weights no longer fit. Where only a stride changed, the
            published weights still see the pixels they were made for and are kept.
    """

    text: str = "as published"
    replaced: tuple[str, ...] = ()


def has_small_stem(name: str) -> bool:
    """Say whether `name` can be built with a small stem; "tiny" has no other."""
    return name != TINY and _family(name) in SMALL_STEMS


def shrink_stem(name: str, body: nn.Module, in_size: int) -> Stem:
    """Change the first layers of `body`, timm's model `name`, for images of `in_size` pixels."""
    if not has_small_stem(name):
        size = data_config(name)["image_size"]
        raise UserError(
            f"encoder {name!r} has no small stem (the families {', '.join(SMALL_STEMS)} have one): "
            f"set encoder.small_stem=false and data.image_size={size} to enlarge the images"
        )
    return SMALL_STEMS[_family(name)](body, in_size)


def _family(name: str) -> str:
    pretrained_cfg(name)  # says what is wrong with a wrong name
    module: str = import_timm().model_entrypoint(name).__module__
    return module.rpartition(".")[2]


def _resnet(body: Any, in_size: int) -> Stem:
    body.maxpool = nn.Identity()
    three_in_a_row = isinstance(body.conv1, nn.Sequential)  # the "d" variants
    if three_in_a_row:
        body.conv1[0].stride = (1, 1)
        return Stem("stride 1, no pooling", replaced=("maxpool",))
    body.conv1 = nn.Conv2d(3, body.conv1.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
    return Stem("3×3 stride 1, no pooling", replaced=("conv1", "maxpool"))


def _convnext(body: Any, in_size: int) -> Stem:
    first = body.stem[0]
    if first.stride == (2, 2):  # the "ols" variants: two overlapping convolutions in a row
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
