"""What a model says of itself: the content of `model.json`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scs_supcon.recipe import Count, Positive, Recipe, Section, Share

FORMAT_VERSION = 1
Readout = Literal["common", "embeddings", "features"]


class Boundary(Section):
    """When an image is none of the classes."""

    rule: Literal["boundary", "quantile"]
    """The boundary that the method learned, or what all but 5 % of validation images reach."""
    threshold: float
    """Mean similarity to the members of a class that an image needs."""
    val_rejected: Share
    """Share of the validation images that it takes for none of the classes."""


class Facts(Section):
    """All of a model that is not a tensor."""

    format_version: Literal[1] = 1
    """Goes up when older versions of this package cannot read the folder."""
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the classes."""
    trained: Count
    """So many of them, the first ones, were trained; the others were added by their mean."""
    readout: Readout
    """What the classifier sees: the common field or the embeddings at unit length, or features."""
    temperature: Positive
    """Divides the logits of the classifier."""
    sharpness: Positive
    """Multiplies the closeness to class means, where classes were added."""
    boundary: Boundary
    """When an image is none of the classes."""
    recipe: Recipe
    """How it was trained; its data section says how images are prepared."""
    images: tuple[str, ...]
    """Names of the images whose embeddings are kept."""
    counts: dict[str, int] = Field(default_factory=dict)
    """How many images there were to train, validate and test on."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """How well it did."""
    weights_licence: str = "unknown"
    """Licence of the weights the encoder started from."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Facts":
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("two classes have the same name")
        if self.trained > len(self.classes):
            raise ValueError(f"{self.trained} trained classes, but {len(self.classes)} names")
        return self
