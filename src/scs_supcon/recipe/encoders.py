"""A small, dated selection of encoders with permissive licences, and the choice of a default.

Accuracy is the published top-1 accuracy on ImageNet at this image size (timm's
results/results-imagenet.csv of 2025-10-30), licence that of the weights as timm 1.0.30 records it.
The speed was measured by benchmarks/encoders.py on one core of an AMD EPYC: images encoded per
second of processor time.
"""

from dataclasses import dataclass
from pathlib import Path

from scs_supcon.errors import UserError

DATE = "2026-11-17"
SMALL_IMAGE = 64  # short side in pixels up to which images get an encoder for small images
FEW_IMAGES = 300  # up to which a slower encoder takes minutes at most, also without a GPU


@dataclass(frozen=True)
class EncoderChoice:
    """One encoder of the table.

    Attributes:
        name: timm's name.
        alias: "fast", "balanced", "best", or "".
        parameters: in millions.
        image_size: side of the images in pixels.
        accuracy: published top-1 accuracy on ImageNet, in percent.
        images_per_second: measured on one core.
        licence: of the weights.
    """

    name: str
    alias: str
    parameters: float
    image_size: int
    accuracy: float
    images_per_second: float
    licence: str = "Apache-2.0"


ENCODERS = (
    EncoderChoice("mobilenetv4_conv_small.e2400_r224_in1k", "", 3.8, 224, 73.8, 99.4),
    EncoderChoice("tf_efficientnet_lite0", "fast", 4.7, 224, 74.8, 34.1),
    EncoderChoice("efficientnet_b0.ra_in1k", "", 5.3, 224, 77.7, 32.8),
    EncoderChoice("mobilenetv4_conv_medium.e500_r256_in1k", "", 9.7, 256, 79.9, 16.9),
    EncoderChoice("resnet50.a1_in1k", "", 25.6, 224, 80.4, 8.9),
    EncoderChoice("convnext_nano.in12k_ft_in1k", "balanced", 15.6, 224, 82.3, 13.2),
    EncoderChoice("tiny_vit_11m_224.dist_in22k_ft_in1k", "", 11.0, 224, 83.2, 12.0),
    EncoderChoice("convnext_tiny.in12k_ft_in1k", "", 28.6, 224, 84.2, 8.0),
    EncoderChoice("tiny_vit_21m_224.dist_in22k_ft_in1k", "", 21.2, 224, 85.1, 6.9),
    EncoderChoice("convnext_small.in12k_ft_in1k", "best", 50.2, 224, 85.2, 4.2),
)
ALIASES = {choice.alias: choice.name for choice in ENCODERS if choice.alias}


def default_encoder(native_size: int, images: int, *, has_gpu: bool, trained: bool) -> str:
    """Return the encoder for images of this size, number and device.

    Args:
        native_size: usual short side of an image in pixels.
        images: number of images.
        has_gpu: whether the run computes on a GPU.
        trained: whether the user asks for training the whole network.
    """
    if native_size <= SMALL_IMAGE:
        return "tiny" if native_size <= 32 and images <= 5000 else "resnet18"
    return ALIASES["balanced" if has_gpu or (images <= FEW_IMAGES and not trained) else "fast"]


def explain_default(name: str, native_size: int, images: int, has_gpu: bool) -> str:
    """Return a line that explains the choice of `default_encoder`."""
    if native_size <= SMALL_IMAGE:
        return f"choice    encoder {name}, because the images are small ({native_size} pixels)"
    alias = next((choice.alias for choice in ENCODERS if choice.name == name), name)
    reason = "there is a GPU" if has_gpu else "there is no GPU"
    if not has_gpu:
        few = f"only {images}" if alias == "balanced" else f"{images:,}"
        reason += f", and {few} images"
    return f"choice    encoder {name} ({alias}): {reason}; others: `scs encoders`"


def check_start(
    *, frozen: bool | None, unfreeze: bool, from_scratch: bool, weights: Path | None
) -> None:
    """Raise an error for options that contradict each other."""
    if frozen and unfreeze:
        raise UserError("--frozen and --unfreeze exclude each other: use one of them")
    if from_scratch and weights is not None:
        raise UserError(
            "--from-scratch starts from random weights and --weights from those of a file: use one "
            "of them"
        )
