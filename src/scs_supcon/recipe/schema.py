"""The recipe: every number that decides a run, validated and frozen."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Degrees: TypeAlias = Annotated[float, Field(ge=0, le=180)]
Momentum: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
Width: TypeAlias = Annotated[int, Field(ge=0, le=65536)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]
Option: TypeAlias = bool | int | float | str | list[bool | int | float | str]

# A method's name is kept as text in files that anyone may read: nothing in it can be markup.
OWN_OR_OURS = r"""^([a-z0-9_]+|([A-Za-z]:)?[^:<>"'`|\x00-\x1f\x7f]+:[A-Za-z_][A-Za-z0-9_]*)$"""


class Section(BaseModel):
    """A part of the recipe: frozen, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


class DataRecipe(Section):
    """Where the images come from, how they are split, and how a view of one is made."""

    source: Annotated[str, Field(min_length=1)]
    """Folder of class folders, train/val/test folders, .csv, .parquet, or a built-in name."""
    image_size: Annotated[int, Field(ge=8, le=4096)] = 224
    """Side of the square view in pixels."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted from each channel; pixels lie in 0..1."""
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    """Divides each channel."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """How images are resized."""
    crop_pct: Annotated[float, Field(gt=0, le=1)] = 0.875
    """Evaluation: share of the resized short side that the centre crop keeps."""
    crop_scale: tuple[Positive, Positive] = (0.2, 1.0)
    """Training: smallest and largest share of the area in a random crop."""
    flip: bool = True
    """Training: mirror left and right half of the time."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Stage 1: brightness, contrast and saturation vary so much, hue a quarter; 80 % of views."""
    grayscale: Share = 0.2
    """Stage 1: share of views turned grey."""
    rotate: Degrees = 0.0
    """Stage 1: rotate by up to so many degrees either way."""
    val_share: Share = 0.1
    """Share of images set aside for validation when the data has no such part."""
    test_share: Share = 0.2
    """Share of images set aside for the test when the data has no parts at all."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Cross-validation: all images are dealt into so many folds; left out for none."""
    fold: Annotated[int, Field(ge=0)] | None = None
    """The fold to test on, counted from 0."""
    split_seed: Seed | None = None
    """Seed of the split alone, to train again on the same parts; left out, it is the seed."""
    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 over names, labels and contents: with it a run refuses any other data."""

    @model_validator(mode="after")
    def _fits_together(self) -> "DataRecipe":
        low, high = self.crop_scale
        _require(low <= high <= 1, f"crop_scale is {low}, {high}: needs smallest <= largest <= 1")
        shares = self.val_share + self.test_share
        _require(shares < 1, f"val_share + test_share is {shares:g}: leave something to train on")
        both = self.folds is not None and self.fold is not None
        _require(both or self.folds is self.fold, "folds and fold go together: give both or none")
        _require(
            not both or (self.fold or 0) < (self.folds or 0),
            f"fold is {self.fold}: with {self.folds} folds the last is {(self.folds or 0) - 1}",
        )
        return self


class EncoderRecipe(Section):
    """The network from image to features."""

    # The pattern keeps addresses and paths out: no recipe file may cause a download from them.
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")] = "resnet18"
    """Any timm model name, or 'tiny'."""
    weights: Annotated[str, Field(pattern=r"^(pretrained|scratch|sha256:[0-9a-f]{64})$")] = (
        "pretrained"
    )
    """'pretrained' (timm's own), 'scratch' (random), or 'sha256:' and a weights file's hash."""
    small_stem: bool = False
    """A 3x3 stem of stride 1 without pooling, for images of about 32 pixels."""
    frozen: bool = False
    """Keep the encoder as it is and train on its cached features."""
    frozen_views: Count = 8
    """When frozen: random views of each image in the cache."""
    frozen_mix: bool = True
    """When frozen: draw each view of stage 1 between two cached ones, for views without end."""
    frozen_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """When frozen: share of the features that a view of stage 1 leaves out."""


class HeadRecipe(Section):
    """The projection from features to the common and style fields."""

    common_dim: Annotated[Width, Field(ge=1)] = 192
    """Width of the common field: what the images of a class share."""
    style_dim: Width = 64
    """Width of the style field: what varies within a class."""
    overlap: Width = 0
    """Columns that belong to both fields."""
    hidden: Width = 0
    """Width of the hidden layer; 0 stands for the width of the features."""
    centre: bool = True
    """Standardise each column over the batch, without learnt scale or shift."""

    @model_validator(mode="after")
    def _fits_together(self) -> "HeadRecipe":
        narrow = min(self.common_dim, self.style_dim)
        _require(
            self.overlap <= narrow,
            f"overlap is {self.overlap}, but the narrower field has {narrow} columns",
        )
        return self

    @property
    def dim(self) -> int:
        """Width of the projection: both fields, the overlap counted once."""
        return self.common_dim + self.style_dim - self.overlap


class MethodRecipe(Section):
    """The loss of stage 1."""

    name: Annotated[str, Field(pattern=OWN_OR_OURS, max_length=500)] = "scs_supcon"
    """`scs methods` lists them; module:Class or file.py:Class is code of your own."""
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the file that holds code of your own: with it a run refuses any other code."""
    preset: str | None = None
    """A named reading of the method, such as 'paper'; left out for the default one."""
    options: dict[str, Option] = {}
    """Arguments of the method by name; `scs show NAME` explains them."""


class PretrainRecipe(Section):
    """Stage 1: encoder and head learn with the method's loss."""

    epochs: Annotated[int, Field(ge=0)] = 100
    """Passes over the training images."""
    batch_size: Count = 256
    """Images per step, over all processes together."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW."""
    lr: Positive = 0.1
    """Learning rate after the warm-up."""
    lr_floor: Share = 0.001
    """Share of lr at which the cosine ends."""
    momentum: Momentum = 0.9
    """Momentum of SGD; the first beta of AdamW."""
    weight_decay: NonNegative = 1e-4
    """On matrices only, never on biases, norms, t or b."""
    warmup_epochs: NonNegative = 0.0
    """Epochs of linear warm-up."""
    clip_norm: NonNegative = 0.0
    """Largest norm of the gradient; 0 stands for no clipping."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Arithmetic of the network; losses are always computed in 32 bits or more."""
    batches: Literal["shuffle", "balanced", "long_tail"] = "shuffle"
    """Plain shuffling; per_class images of each class; or that with rare classes repeated."""
    per_class: Count = 4
    """Images of one class in a balanced batch."""
    micro_batch: Annotated[int, Field(ge=0)] = 0
    """Views that the encoder works on at a time, to save memory; 0 stands for all of a batch."""

    @model_validator(mode="after")
    def _fits_together(self) -> "PretrainRecipe":
        _require(
            self.warmup_epochs <= self.epochs,
            f"warmup_epochs is {self.warmup_epochs:g}, more than the {self.epochs} epochs",
        )
        _require(
            self.batches == "shuffle" or self.per_class <= self.batch_size,
            f"per_class is {self.per_class}, more than the batch_size of {self.batch_size}",
        )
        return self


class ProbeRecipe(Section):
    """Stage 2: a bank of linear heads on the frozen readout, one for each pair of rates."""

    epochs: Count = 100
    """Passes over the training images, one view of each."""
    batch_size: Count = 512
    """Images per step."""
    lrs: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.1, 1.0, 3.0, 10.0, 30.0)
    """Learning rates in the bank, for a readout that is centred and scaled to length 1."""
    weight_decays: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = (0.0, 1e-4)
    """Weight decays in the bank."""
    plain_lr: Positive = 3.0
    """Learning rate of one more head, on the readout as it is: stage 2 as in the paper."""
    momentum: Momentum = 0.9
    """Momentum of SGD."""
    views: Count = 4
    """Cropped and mirrored views of each image to learn from."""


class Recipe(Section):
    """Everything that decides a run."""

    seed: Seed = 0
    """All randomness follows from it."""
    data: DataRecipe
    encoder: EncoderRecipe = EncoderRecipe()
    head: HeadRecipe = HeadRecipe()
    method: MethodRecipe = MethodRecipe()
    pretrain: PretrainRecipe = PretrainRecipe()
    probe: ProbeRecipe = ProbeRecipe()

    @property
    def split_seed(self) -> int:
        """The seed by which images are dealt into parts."""
        return self.seed if self.data.split_seed is None else self.data.split_seed


SECTIONS: dict[str, type[Section]] = {
    "data": DataRecipe,
    "encoder": EncoderRecipe,
    "head": HeadRecipe,
    "method": MethodRecipe,
    "pretrain": PretrainRecipe,
    "probe": ProbeRecipe,
}
