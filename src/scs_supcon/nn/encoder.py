"""Encoders: images -> features, with optional taps; timm's models and a tiny one for tests."""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.nn.own_encoder import build_own_encoder, own_encoder_digest
from scs_supcon.nn.taps import record_taps
from scs_supcon.nn.timm_models import (
    TINY,
    Stem,
    data_config,
    import_timm,
    pretrained_cfg,
    shrink_stem,
)
from scs_supcon.plugins import is_plugin

TINY_WIDTH = 128


class Encoder(nn.Module):
    """Images (n, 3, height, width) to features (n, num_features).

    Attributes:
        name: timm's name of the model, "tiny", or the name of the user's own code.
        body: the model without its classifier.
        num_features: width of the features. timm's `num_features` is the width of the last feature
            map, after which some models have another layer.
        stem: the first layers.
        in_size: side in pixels of the images that it was built for.
        taps: name and channels of the middle stage, if the model has stages; see `nn.taps`.
    """

    def __init__(
        self, name: str, body: nn.Module, num_features: int, stem: Stem, in_size: int
    ) -> None:
        super().__init__()
        self.name = name
        self.body = body
        self.num_features = num_features
        self.stem = stem
        self.in_size = in_size
        self.taps = _taps(body)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, pooled over the image."""
        features: Tensor = self.body(images)
        return features


def build_encoder(name: str, *, small_stem: bool, in_size: int) -> Encoder:
    """Build an encoder with random weights.

    Args:
        name: any timm model, with or without the tag of its weights, "tiny", or the user's own
            code (`nn.own_encoder`), which must have been allowed.
        small_stem: whether to use first layers for images of about 32 pixels; see `timm_models`.
        in_size: side of the images in pixels.

    Raises:
        UserError: the name is unknown, the family has no small stem, or the size is impossible.
    """
    if name == TINY:
        tiny = TinyNet(in_size)
        body: nn.Module = tiny
        stem = Stem(f"3×3 stride {tiny.stem_stride}")
    elif is_plugin(name):
        # With the digest, cached features of other code are not used.
        body, stem = build_own_encoder(name), Stem(f"code {own_encoder_digest(name)}")
    else:
        pretrained_cfg(name)  # raises a UserError for an unknown name
        body = import_timm().create_model(name, pretrained=False, num_classes=0)
        stem = shrink_stem(name, body, in_size) if small_stem else Stem()
    return Encoder(name, body, _width(name, body, in_size), stem, in_size)


def encoder_key(encoder: Encoder) -> str:
    """Return the encoder's name and a hash of its weights: equal keys mean equal features."""
    digest = hashlib.sha256(encoder.stem.text.encode())
    for name, tensor in sorted(encoder.body.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return f"{encoder.name}-{digest.hexdigest()}"


class TappedEncoder(nn.Module):
    """Images to rows [features | taps], which can be cached.

    The features equal those of the encoder bit for bit.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_features = encoder.num_features + sum(encoder.taps.values())

    def forward(self, images: Tensor) -> Tensor:
        with record_taps(self.encoder, list(self.encoder.taps.values())) as outputs:
            features: Tensor = self.encoder(images)
        return torch.cat([features, *(torch.cat(tap) for tap in outputs)], 1)


class CachedEncoder(nn.Module):
    """Replaces the encoder when its rows [features | taps] come from a cache."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        widths = list(encoder.taps.values())
        ends = torch.tensor([encoder.num_features, *widths]).cumsum(0).tolist()
        self.features = _Columns(0, ends[0])
        self.tap = nn.ModuleList(
            _Columns(end - w, end) for end, w in zip(ends[1:], widths, strict=True)
        )
        self.taps = {f"tap.{number}": width for number, width in enumerate(widths)}

    def forward(self, rows: Tensor) -> Tensor:
        for tap in self.tap:
            tap(rows)  # for the hooks of `record_taps`
        features: Tensor = self.features(rows)
        return features


class _Columns(nn.Module):
    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop = start, stop

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, self.start : self.stop]


def for_cache(encoder: Encoder, taps: bool) -> tuple[Encoder | TappedEncoder, nn.Module]:
    """Return the module whose output is cached, and the module that replaces the encoder."""
    if taps and encoder.taps:
        return TappedEncoder(encoder), CachedEncoder(encoder)
    return encoder, nn.Identity()


def rows_key(source: Encoder | TappedEncoder) -> str:
    """Return a key of cached rows: equal keys mean equal rows, with or without taps."""
    if isinstance(source, TappedEncoder):
        return f"{encoder_key(source.encoder)} | {json.dumps(source.encoder.taps)}"
    return encoder_key(source)


class TinyNet(nn.Module):
    """A small convolutional encoder for images of 8 to 32 pixels, fast on a CPU.

    Four 3×3 convolutions of 32, 64, 128 and 128 channels, then the mean over all positions.
    GroupNorm uses no batch statistics, so the features of an image depend neither on its batch nor
    on the number of processes. For images of 24 pixels or more the first layer has stride 2, so
    that they cost about as much as images of half the size.

    Args:
        in_size: side of the images in pixels.
    """

    def __init__(self, in_size: int) -> None:
        super().__init__()
        self.stem_stride = 2 if in_size >= 24 else 1
        self.feature_info = [
            {"module": f"layers.{number}", "num_chs": channels}
            for number, channels in enumerate((32, 64, TINY_WIDTH, TINY_WIDTH))
        ]
        self.layers = nn.Sequential(
            _layer(3, 32, self.stem_stride),
            _layer(32, 64, 2),
            _layer(64, TINY_WIDTH, 2),
            _layer(TINY_WIDTH, TINY_WIDTH, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, 128) of images (n, 3, height, width)."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the last feature map (n, 128, rows, columns), as timm's models do."""
        maps: Tensor = self.layers(images)
        return maps

    def forward_head(self, maps: Tensor, pre_logits: bool = True) -> Tensor:
        """Return the mean over all positions; there are no logits."""
        return maps.mean(dim=(2, 3))


def _layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU(inplace=True))


def _width(name: str, body: nn.Module, in_size: int) -> int:
    """Encode one image and return the width of its features; raise an error if this fails."""
    width = getattr(body, "head_hidden_size", None)
    if width is not None and next(body.parameters()).is_meta:
        return int(width)  # computing without values would import torch's compiler
    training = body.training
    body.eval()
    try:
        with torch.no_grad():
            features = body(torch.zeros(1, 3, in_size, in_size))
    except (AssertionError, RuntimeError, ValueError, IndexError) as error:
        size = data_config(name)["image_size"]
        raise UserError(
            f"encoder {name!r} does not work with images of {in_size} pixels ({error}): "
            f"it expects data.image_size={size}"
        ) from error
    finally:
        body.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise UserError(f"encoder {name!r} does not return pooled features: choose another one")
    return features.shape[1]


def _taps(body: nn.Module) -> dict[str, int]:
    """Return the tap of a model; {} if timm lists no stages or they are not submodules.

    The tap is the middle of the model: the second of the last four stages, or the middle block of a
    model such as a ViT whose blocks all have the same resolution.
    """
    stages: Any = list(getattr(body, "feature_info", ()))
    if len(stages) < 4:
        return {}
    reductions = {stage.get("reduction") for stage in stages}
    same_resolution = len(reductions) == 1 and None not in reductions
    stage = stages[len(stages) // 2 - 1 if same_resolution else -3]
    if stage["module"] not in dict(body.named_modules()):
        return {}
    return {f"body.{stage['module']}": int(stage["num_chs"])}
