"""The images that an encoder expects."""

from typing import TypedDict


class DataConfig(TypedDict):
    """The images that an encoder expects; the keys are fields of the data recipe."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str
    crop_pct: float


IMAGENET = DataConfig(
    image_size=224,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    interpolation="bilinear",
    crop_pct=0.875,
)
