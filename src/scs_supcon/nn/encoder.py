"""The encoder as the rest of the package sees it."""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.nn.catalogue import data_config, import_timm, pretrained_cfg
from scs_supcon.nn.stems import Stem, shrink_stem
from scs_supcon.nn.tiny import TINY, TinyNet


class Encoder(nn.Module):
    """Images (n, 3, height, width) to features (n, num_features).

    Attributes:
        name: timm's name of the model, or "tiny".
        body: The model itself, without a classifier.
        num_features: Width of the features. timm's own number is that of the last map, which
            in some families a further layer widens.
        stem: What the first layers are.
        taps: Submodules worth looking at half-way, with the channels of their output, see
            `nn.taps`: the end of the second of the last four stages, if there are stages.
    """

    def __init__(self, name: str, body: nn.Module, num_features: int, stem: Stem) -> None:
        super().__init__()
        self.name = name
        self.body = body
        self.num_features = num_features
        self.stem = stem
        self.taps = _taps(body)

    def forward(self, images: Tensor) -> Tensor:
        """Features, pooled over the image."""
        features: Tensor = self.body(images)
        return features


def build_encoder(name: str, *, small_stem: bool, in_size: int) -> Encoder:
    """Build an encoder with random weights.

    Args:
        name: Any timm model, with or without the tag of its weights, or "tiny".
        small_stem: First layers for images of about 32 pixels, see `stems`.
        in_size: Side of the images in pixels.

    Raises:
        UserError: Unknown name, a family without a small stem, or a size it cannot take.
    """
    if name == TINY:
        tiny = TinyNet(in_size)
        body, stem = tiny, Stem(f"3×3 stride {tiny.stem_stride}")
    else:
        pretrained_cfg(name)  # says what is wrong with a wrong name
        body = import_timm().create_model(name, pretrained=False, num_classes=0)
        stem = shrink_stem(name, body, in_size) if small_stem else Stem()
    return Encoder(name, body, _width(name, body, in_size), stem)


def encoder_key(encoder: Encoder) -> str:
    """Name the encoder and hash its weights: equal keys mean equal features."""
    digest = hashlib.sha256(encoder.stem.text.encode())
    for name, tensor in sorted(encoder.body.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return f"{encoder.name}-{digest.hexdigest()}"


def _width(name: str, body: nn.Module, in_size: int) -> int:
    """Try one image: the only sure way to learn the width, and whether the size is possible."""
    training = body.training
    body.eval()
    try:
        with torch.no_grad():
            features = body(torch.zeros(1, 3, in_size, in_size))
    except (AssertionError, RuntimeError, ValueError, IndexError) as error:
        size = data_config(name)["image_size"]
        raise UserError(
            f"encoder {name!r} cannot take images of {in_size} pixels ({error}): "
            f"it was made for data.image_size={size}"
        ) from error
    finally:
        body.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(f"encoder {name!r} gives no pooled features: choose another")
    return features.shape[1]


def _taps(body: nn.Module) -> dict[str, int]:
    """timm lists where its models have a map of each size; not all of them are submodules."""
    stages: Any = list(getattr(body, "feature_info", ()))
    if len(stages) < 4 or stages[-3]["module"] not in dict(body.named_modules()):
        return {}
    return {f"body.{stages[-3]['module']}": int(stages[-3]["num_chs"])}
