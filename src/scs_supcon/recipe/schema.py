"""The recipe of a run: every value that determines it, validated and immutable.

The description below a field becomes a comment in recipe.toml and part of error messages.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scs_supcon.io.values import Option

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Degrees: TypeAlias = Annotated[float, Field(ge=0, le=180)]
Momentum: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
NonNegative: TypeAlias = Annotated[float, Field(ge=0)]
Positive: TypeAlias = Annotated[float, Field(gt=0)]
Width: TypeAlias = Annotated[int, Field(ge=0, le=65536)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
Epochs: TypeAlias = Annotated[int, Field(ge=0, le=1_000_000)]
Views: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
FEW = Field(min_length=1, max_length=100)
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]
Augment: TypeAlias = Literal["jitter", "trivial", "rand"]

# Names of methods appear in reports and model cards, so they must not contain markup.
_CODE = r"""([A-Za-z]:)?[^:<>"'`|\x00-\x1f\x7f]+:[A-Za-z_][A-Za-z0-9_]*"""
METHOD_PATTERN = f"^([a-z0-9_]+|{_CODE})$"
# Without own code, the pattern excludes URLs and paths: a recipe must not cause downloads.
ENCODER_PATTERN = f"^([A-Za-z0-9_.-]+|{_CODE})$"
Digest: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Section(BaseModel):
    """A section of the recipe: immutable, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


class DataRecipe(Section):
    """The images, their splits, and how views (augmented images) are made."""

    source: Annotated[str, Field(min_length=1)]
    """Folder of class folders, train/val/test folders, .csv, .parquet, or a built-in dataset."""
    image_size: Annotated[int, Field(ge=8, le=4096)] = 224
    """Side of a square view in pixels."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean that is subtracted from each channel; pixel values lie in 0..1."""
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    """Standard deviation that each channel is divided by."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Interpolation when images are resized: bilinear or bicubic."""
    crop_pct: Annotated[float, Field(ge=0.1, le=1)] = 0.875
    """Evaluation: side of the centre crop as a share of the resized short side."""
    crop_scale: tuple[Positive, Positive] = (0.2, 1.0)
    """Training: smallest and largest area of a random crop, as a share of the image."""
    flip: bool = True
    """Training: mirror half of the views horizontally."""
    augment: Augment = "jitter"
    """Stage 1: jitter (colour jitter and grey), trivial (TrivialAugment) or rand (RandAugment)."""
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Stage 1: strength of the colour jitter (hue: a quarter of it) in 80% of the views."""
    grayscale: Share = 0.2
    """Stage 1: share of the views that are converted to grey."""
    blur: Annotated[tuple[Share, ...], FEW] = (0.0,)
    """Stage 1: share of blurred views: of the first view of an image, the second, ... in turn."""
    solarize: Annotated[tuple[Share, ...], FEW] = (0.0,)
    """Stage 1: share of solarised views (bright pixels inverted), likewise."""
    rotate: Degrees = 0.0
    """Stage 1: largest random rotation in degrees, in both directions."""
    in_memory: bool = False
    """Stage 1: hold images of up to 64 pixels in memory and make the views of a batch at once."""
    transform: Annotated[str, Field(pattern=f"^{_CODE}$", max_length=500)] | None = None
    """Stage 1: your own code for the views, instead of crop, flip, augment, jitter and rotate."""
    transform_code: Digest | None = None
    """SHA-256 of the file with your own transform; training with other code is an error."""
    val_share: Share = 0.1
    """Share of the images for the validation split, if the data has none."""
    test_share: Share = 0.2
    """Share of the images for the test split, if the data has no splits."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Number of cross-validation folds; omitted without cross-validation."""
    fold: Annotated[int, Field(ge=0)] | None = None
    """Cross-validation: the fold that is tested, counted from 0."""
    fold_from: Literal["train"] | None = None
    """Cross-validation: train divides the training images only; omitted: all images."""
    images_per_class: Annotated[int, Field(ge=2)] | None = None
    """Images of each class for training and validation together; omitted: all of them."""
    imbalance: Annotated[float, Field(ge=1)] | None = None
    """Long tail: training images of the first class per image of the last; omitted: none."""
    split_seed: Seed | None = None
    """Seed of the splits, to train with other seeds on the same splits. Default: seed."""
    content: Digest | None = None
    """SHA-256 of names, labels and images; if given, training on other data is an error."""

    @model_validator(mode="after")
    def _check_consistency(self) -> "DataRecipe":
        low, high = self.crop_scale
        _require(
            low <= high <= 1, f"crop_scale must be smallest <= largest <= 1, got {low}, {high}"
        )
        shares = self.val_share + self.test_share
        _require(shares < 1, f"val_share + test_share must be below 1, got {shares:g}")
        both = self.folds is not None and self.fold is not None
        _require(both or self.folds is self.fold, "set both folds and fold, or neither")
        _require(
            not both or (self.fold or 0) < (self.folds or 0),
            f"fold must be between 0 and {(self.folds or 0) - 1}, got {self.fold}",
        )
        return self


class EncoderRecipe(Section):
    """The encoder: the network from an image to features."""

    name: Annotated[str, Field(pattern=ENCODER_PATTERN, max_length=500)] = "resnet18"
    """Any timm model name, 'tiny', or your own code as module:function or file.py:function."""
    code: Digest | None = None
    """SHA-256 of the file with your own code; training with other code is an error."""
    weights: Annotated[str, Field(pattern=r"^(pretrained|scratch|sha256:[0-9a-f]{64})$")] = (
        "pretrained"
    )
    """'pretrained' (by timm), 'scratch' (random), or 'sha256:' and the hash of a weights file."""
    small_stem: bool = False
    """Replace the stem with a 3x3 convolution without stride and pooling, for small images."""
    frozen: bool = False
    """Freeze the encoder and train on its cached features."""
    fixed_norm: bool = False
    """Trained encoder: keep the initial statistics of batch normalisation."""
    frozen_views: Views = 8
    """Frozen encoder: number of random views of each image in the cache."""
    frozen_mix: bool = True
    """Frozen encoder: interpolate each view of stage 1 between two cached views."""
    frozen_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Frozen encoder: dropout of the features in stage 1."""


class HeadRecipe(Section):
    """The projection head: from features to an embedding with a common and a style field."""

    common_dim: Annotated[Width, Field(ge=1)] = 192
    """Width of the common field: what images of a class have in common."""
    style_dim: Width = 64
    """Width of the style field: what differs between images of a class."""
    overlap: Width = 0
    """Number of columns that belong to both fields."""
    hidden: Width = 0
    """Width of the hidden layer; 0: the width of the features."""
    centre: bool = True
    """Standardise each column over the batch, without learnable scale and shift."""
    heads: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of projection heads that are trained side by side and joined."""
    style: Literal["trained", "fitted"] = "trained"
    """The style field: trained by the loss, or fitted to the final features without the class."""

    @model_validator(mode="after")
    def _check_consistency(self) -> "HeadRecipe":
        narrow = min(self.common_dim, self.style_dim)
        _require(
            self.overlap <= narrow,
            f"overlap must be at most {narrow} (the narrower field), got {self.overlap}",
        )
        _require(
            self.style == "trained" or not self.overlap,
            f"style = 'fitted' requires overlap = 0, got {self.overlap}",
        )
        return self

    @property
    def dim(self) -> int:
        """Width of the embedding: both fields, with the overlap counted once."""
        return self.common_dim + self.style_dim - self.overlap

    @property
    def fitted_dim(self) -> int:
        """Number of columns that are fitted after stage 1."""
        return self.style_dim if self.style == "fitted" else 0


class MethodRecipe(Section):
    """The method: the loss of stage 1."""

    name: Annotated[str, Field(pattern=METHOD_PATTERN, max_length=500)] = "scs_supcon"
    """A name that `scs methods` lists, or your own code as module:Class or file.py:Class."""
    code: Digest | None = None
    """SHA-256 of the file with your own code; training with other code is an error."""
    preset: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")] | None = None
    """Named set of options, such as 'paper'; omitted if the method has no presets."""
    options: dict[str, Option] = {}
    """Options of the method; `scs show NAME` explains them."""


class PretrainRecipe(Section):
    """Stage 1 (pretraining): train encoder and head with the loss of the method."""

    epochs: Epochs = 100
    """Passes over the training images."""
    batch_size: Count = 256
    """Images per step, of all processes together."""
    optimizer: Literal["sgd", "lars", "adamw"] = "sgd"
    """Optimizer: sgd (with momentum), lars (sgd for batches of thousands of images) or adamw."""
    lr: Positive = 0.1
    """Learning rate after the warm-up."""
    lr_floor: Share = 0.001
    """Final learning rate of the cosine schedule, as a share of lr."""
    momentum: Momentum = 0.9
    """Momentum of SGD and LARS, or first beta of AdamW."""
    weight_decay: NonNegative = 1e-4
    """Weight decay of matrices; biases, norms, t and b have none."""
    warmup_epochs: NonNegative = 0.0
    """Epochs of linear warm-up of the learning rate."""
    clip_norm: NonNegative = 0.0
    """Clip the norm of the gradient at this value; 0: no clipping."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Precision of the network; losses are always computed in 32 bits or more."""
    batches: Literal["shuffle", "balanced", "long_tail"] = "shuffle"
    """shuffle, balanced (per_class images of a class), or long_tail (rare classes repeated)."""
    per_class: Count = 4
    """Images of each class in a balanced batch."""
    micro_batch: Annotated[int, Field(ge=0)] = 0
    """Views that are encoded at a time, to save memory; 0: all views of a batch."""
    head_epochs: Epochs = 0
    """Trained encoder: epochs of the head alone, on cached features, before the whole network."""
    encoder_lr: Share = 1.0
    """Learning rate of the encoder's last layer, as a share of lr."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor of the learning rate from each layer of the encoder to the one below it."""
    mixup: NonNegative = 0.0
    """MixUp: each image is blended with another one by a share from Beta(α, α); 0: none."""
    cutmix: NonNegative = 0.0
    """CutMix: α as for MixUp; each image gets a rectangle of another. With both, one per batch."""
    cross_entropy: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the cross-entropy of a classifier of the features in the loss; 0: none."""
    memory: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Rows of past batches with which a pair loss compares each batch, too; 0: none."""
    views: Count | None = None
    """Views of each image in a step; omitted: as many as the method asks for."""
    ema: Momentum = 0.0
    """Decay of the running average of the weights, which replaces them at the end; 0: none."""
    initial_share: Momentum = 0.0
    """Share of the initial weights in the final ones, averaged at the end (WiSE-FT); 0: none."""
    patience: Epochs = 0
    """Stop after this many epochs without a higher validation accuracy; 0: train all epochs."""

    @model_validator(mode="after")
    def _check_consistency(self) -> "PretrainRecipe":
        _require(
            self.warmup_epochs <= self.epochs,
            f"warmup_epochs must be at most epochs ({self.epochs}), got {self.warmup_epochs:g}",
        )
        _require(
            self.batches == "shuffle" or self.per_class <= self.batch_size,
            f"per_class must be at most batch_size ({self.batch_size}), got {self.per_class}",
        )
        _require(
            not self.memory or not (self.mixup or self.cutmix),
            f"memory = {self.memory} cannot be combined with mixup or cutmix (soft labels)",
        )
        return self


class ProbeRecipe(Section):
    """Stage 2 (probe): linear classifiers, one for each learning rate and weight decay."""

    input: Literal["method", "features", "embeddings", "common"] = "method"
    """What is classified: the method's default, features, embeddings (all trained), or common."""
    classifier: Literal["bank", "single"] = "bank"
    """bank: chosen from all rates and decays; single: plain_lr and the first decay, unscaled."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of the probe inputs in training."""
    epochs: Count = 100
    """Passes over the training images, with one view of each."""
    batch_size: Count = 512
    """Images per step."""
    lrs: Annotated[tuple[Positive, ...], FEW] = (
        0.1,
        1.0,
        3.0,
        10.0,
        30.0,
    )
    """Learning rates to try, on probe inputs that are centred and scaled to length 1."""
    weight_decays: Annotated[tuple[NonNegative, ...], FEW] = (
        0.0,
        1e-4,
    )
    """Weight decays to try."""
    plain_lr: Positive = 3.0
    """Learning rate of one more classifier, on unscaled probe inputs, as in the paper."""
    momentum: Momentum = 0.9
    """Momentum of SGD."""
    views: Views = 4
    """Cropped and mirrored training views of each image; frozen: the cached views of stage 1."""


class FusionRecipe(Section):
    """The fusion of the common field with the whitened features of the encoder.

    Both are unit vectors; the similarity is omega times that of the whitened features plus
    1 - omega times that of the common field. Classes are represented by their means.
    """

    whitened: bool = False
    """Fuse the common field with the whitened features, and classify by class means."""
    classifier: Literal["means", "linear"] = "means"
    """Classify by class means, or by stage 2 on the fused field."""
    shrinkage: Annotated[tuple[Share, ...], FEW] = (0.2, 0.3, 0.45, 0.6, 0.8)
    """Shrinkages of the within-class covariance to choose from."""
    omega: Annotated[tuple[Share, ...], FEW] = (0.5, 0.0, 0.25, 0.75, 1.0)
    """Weights of the whitened features; the first, unless another one is clearly better."""
    directions: Count = 256
    """Largest number of columns of the whitened features."""
    folds: Annotated[int, Field(ge=0, le=1000)] = 5
    """Folds for out-of-fold choices and calibration; 0: use the validation images."""

    @property
    def out_of_fold(self) -> bool:
        """Whether frozen heads are trained again without each fold."""
        return self.whitened and self.folds > 1


class Recipe(Section):
    """Every value that determines a run."""

    seed: Seed = 0
    """Seed of all random numbers."""
    data: DataRecipe
    encoder: EncoderRecipe = EncoderRecipe()
    head: HeadRecipe = HeadRecipe()
    method: MethodRecipe = MethodRecipe()
    pretrain: PretrainRecipe = PretrainRecipe()
    probe: ProbeRecipe = ProbeRecipe()
    fusion: FusionRecipe = FusionRecipe()

    @model_validator(mode="after")
    def _check_consistency(self) -> "Recipe":
        _require(
            not (self.encoder.frozen and self.pretrain.head_epochs),
            "pretrain.head_epochs trains the head before the encoder, but encoder.frozen is true: "
            "use either",
        )
        _require(
            bool(self.pretrain.head_epochs or not self.pretrain.initial_share),
            "pretrain.initial_share averages the final weights with those before the encoder is "
            "trained, which needs a trained head: use --unfreeze, or set it to 0",
        )
        _require(
            not (self.encoder.frozen and self.pretrain.cutmix),
            "pretrain.cutmix cuts images, but encoder.frozen is true, so that training sees "
            "features: use pretrain.mixup",
        )
        return self

    @property
    def split_seed(self) -> int:
        """The seed of the splits."""
        return self.seed if self.data.split_seed is None else self.data.split_seed


SECTIONS: dict[str, type[Section]] = {
    "data": DataRecipe,
    "encoder": EncoderRecipe,
    "head": HeadRecipe,
    "method": MethodRecipe,
    "pretrain": PretrainRecipe,
    "probe": ProbeRecipe,
    "fusion": FusionRecipe,
}
