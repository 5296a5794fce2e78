"""Turn user options and facts about the data into a complete recipe.

Three layers, where later ones override earlier ones: defaults for the data, the encoder and the
method; the recipe file; the options. `resolve_recipe` reads no files, and resolving a resolved
recipe does not change it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.sampler import choose_batches
from scs_supcon.data.splits import (
    SplitColumns,
    assign_splits,
    fold_splits,
    fold_training_images,
    keep_long_tail,
    keep_per_class,
)
from scs_supcon.errors import UserError
from scs_supcon.io.values import Value
from scs_supcon.methods import build_method, method_class, parse
from scs_supcon.methods.shared.classifier import ClassifierOnFeatures
from scs_supcon.nn.timm_models import data_config, has_small_stem, is_convolutional, timm_name
from scs_supcon.plugins import allow_code, is_plugin
from scs_supcon.recipe import paper
from scs_supcon.recipe.defaults import complete_options, options_of, preset_name
from scs_supcon.recipe.encoders import ALIASES, SMALL_IMAGE, check_start, default_encoder
from scs_supcon.recipe.own_code import (
    check_code_allowed,
    with_code_digests,
    without_other_digests,
)
from scs_supcon.recipe.recommended import (
    is_recommended,
    recommended_values,
)
from scs_supcon.recipe.schema import Recipe
from scs_supcon.recipe.toml import Values, make_recipe, merge, override, section, value_of

MAX_BATCH_SIZE = 256  # unless the user sets another one
DEFAULT_METHOD = "scs_supcon"
# Only explosions are clipped: gradients usually have norms of 0.5 to 4, and the first steps of the
# circle losses norms above 100. A norm that clips every step would act as a learning rate.
CLIP_NORM = 10.0
FROZEN_STEPS = 100  # at least, with a frozen encoder: few images make few steps per epoch
HEAD_EPOCHS = 20  # of the head alone, with --unfreeze
UNFREEZE_BATCH_SIZE = 64  # the features of a whole network take hundreds of times more memory


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """User options of a run. `None` means that a default is chosen for the data.

    Attributes:
        source: folder of class folders, train/val/test folders, .csv, .parquet, or a built-in
            dataset.
        method: name of the method, such as "supcon" or "scs_supcon@paper".
        encoder: name of a timm model, "tiny", "fast", "balanced" or "best" of `scs encoders`, or
            own code, such as "my_lab.nets:build".
        transform: own code for the views of stage 1, such as "my_lab.views:build".
        weights: safetensors file with the weights of the encoder.
        from_scratch: start the encoder from random weights.
        frozen: train on cached features of the encoder instead of training the encoder.
        unfreeze: train the head on cached features first, then the whole network.
        epochs: epochs of stage 1.
        batch_size: images per step of stage 1.
        micro_batch: views that the encoder processes at a time.
        seed: seed of all random numbers.
        recipe: TOML file with any part of a recipe, or "paper" for the protocol of the paper.
        init_from: finished run whose encoder and head to start from.
        settings: `section.key=value` assignments; they override everything else.
    """

    source: str
    method: str | None = None
    encoder: str | None = None
    transform: str | None = None
    weights: Path | None = None
    from_scratch: bool = False
    frozen: bool | None = None
    unfreeze: bool = False
    epochs: int | None = None
    batch_size: int | None = None
    micro_batch: int | None = None
    seed: int | None = None
    recipe: Path | None = None
    init_from: Path | None = None
    settings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class InputFiles:
    """Contents of the files that the options name, read by `training.input_files`.

    Attributes:
        recipe: values of the recipe file.
        named_recipe: "paper" for the protocol of the paper, "" for the recommended recipe.
        weights_sha256: digest of the file with the encoder's weights.
        initial_recipe: recipe of the run to start from.
        initial_sha256: digest of that run's weights.
    """

    recipe: Values = field(default_factory=dict)
    named_recipe: str = ""
    weights_sha256: str | None = None
    initial_recipe: Recipe | None = None
    initial_sha256: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class DatasetFacts:
    """Facts about a dataset that determine defaults.

    Attributes:
        native_size: usual short side of an image in pixels.
        labels: index into `classes` for each image.
        classes: names of the classes.
        splits: "train", "val" or "test" for each image, if the data has splits.
        groups: group of each image, if the data has groups; a group stays in one split.
        folds: fold of each image, if the data has folds.
        view_defaults: fields of `DataRecipe` that this dataset sets.
    """

    native_size: int
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    splits: NDArray[np.str_] | None = None
    groups: NDArray[np.str_] | None = None
    folds: NDArray[np.int64] | None = None
    view_defaults: Mapping[str, Value] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, images: ImageDataset) -> "DatasetFacts":
        """Return the facts about a dataset."""
        return cls(
            native_size=images.native_size,
            labels=images.labels,
            classes=images.classes,
            splits=images.splits,
            groups=images.groups,
            folds=images.folds,
            view_defaults=images.view_defaults,
        )


def resolve_recipe(
    options: TrainOptions,
    facts: DatasetFacts,
    files: InputFiles | None = None,
    *,
    has_gpu: bool = False,
) -> Recipe:
    """Return the complete recipe of a run.

    Args:
        options: user options.
        facts: facts about the data.
        files: contents of the files that the options name; none by default.
        has_gpu: whether the run computes on a GPU.

    Raises:
        UserError: an option is invalid, or options contradict each other or the data.
    """
    files = files or InputFiles()
    requested = requested_values(options, files)
    is_paper = files.named_recipe == paper.NAME
    if is_paper:
        requested = paper.paper_request(options.source, facts.native_size, requested)
    unfreeze = bool(section(requested, "pretrain").get("head_epochs"))
    encoder = _encoder(section(requested, "encoder"), facts, has_gpu, unfreeze)
    encoder_name, frozen = str(encoder["name"]), bool(encoder["frozen"])
    base: Values = {}
    if is_paper:
        convolutional = is_convolutional(encoder_name)
        base = paper.paper_values(options.source, facts.native_size, convolutional)
    elif is_recommended(section(requested, "method"), files.recipe):
        base = recommended_values(frozen, unfreeze)
    method = _method(section(requested, "method"))
    method_name = value_of(method, "name", DEFAULT_METHOD)
    schedule = merge(section(base, "pretrain"), section(requested, "pretrain"))
    defaults = merge(
        {
            "data": _data(encoder, facts),
            "encoder": encoder,
            "pretrain": _schedule(encoder, schedule, _classifies(method_name, schedule)),
        },
        method_class(method_name).recipe_defaults(value_of(method, "preset", "") or None),
        base,
    )
    requested = with_code_digests(requested | {"method": method})
    recipe = make_recipe(merge(defaults, requested))
    if not recipe.encoder.frozen and recipe.data.image_size > SMALL_IMAGE and not is_paper:
        views = method_class(recipe.method.name).large_views
        defaults = merge(defaults, {"data": dict(views)})
    splits = split_dataset(facts, recipe)
    if "val" not in splits:
        raise UserError(
            "there are no images for validation, which is needed to choose the classifier: add "
            "images, or set data.val_share above 0"
        )
    labels = facts.labels[splits == "train"]
    batches = _batches(recipe, labels)
    if is_paper:
        batches = {"batch_size": min(recipe.pretrain.batch_size, len(labels))}
    elif recipe.encoder.frozen:
        size = value_of(section(requested, "pretrain"), "batch_size", _batch_size(recipe, labels))
        enough = math.ceil(FROZEN_STEPS / math.ceil(len(labels) / size))
        batches["epochs"] = max(recipe.pretrain.epochs, enough)
    return make_recipe(merge(defaults, {"pretrain": batches}, requested))


def check_options(options: TrainOptions, files: InputFiles) -> None:
    """Raise a `UserError` for an invalid option, as far as it can be detected without the data."""
    requested = requested_values(options, files)
    _method(section(requested, "method"))
    if name := value_of(section(requested, "encoder"), "name", ""):
        data_config(name)


def split_dataset(images: SplitColumns, recipe: Recipe) -> NDArray[np.str_]:
    """Return "train", "val", "test" or "unused" for each image."""
    data, seed = recipe.data, recipe.split_seed
    if data.folds is not None and data.fold is not None:
        fold_images = fold_training_images if data.fold_from == "train" else fold_splits
        splits = fold_images(images, data.fold, data.folds, data.val_share, seed)
    else:
        splits = assign_splits(images, data.val_share, data.test_share, seed)
    if data.images_per_class is not None:
        count = data.images_per_class
        splits = keep_per_class(images.labels, splits, count, data.val_share, seed)
    if data.imbalance is not None:
        splits = keep_long_tail(images.labels, splits, data.imbalance, seed)
    return splits


def requested_values(options: TrainOptions, files: InputFiles) -> Values:
    """Return the values that are set by the files and the options, without defaults."""
    check_start(
        frozen=options.frozen,
        unfreeze=options.unfreeze,
        from_scratch=options.from_scratch,
        weights=options.weights,
    )
    from_options = _option_values(options, files)
    requested = override(
        merge(_initial_values(files), files.recipe, from_options), options.settings
    )
    if (source := section(requested, "data").get("source")) != options.source:
        raise UserError(f"data.source is {source}, but DATA is {options.source}: leave it out")
    if options.unfreeze and not section(requested, "pretrain").get("head_epochs"):
        requested = merge(requested, {"pretrain": {"head_epochs": HEAD_EPOCHS}})
    before, after = section(files.recipe, "method"), section(requested, "method")
    if before:
        explicit = _explicit_options(before, after)
        chosen = section(override(from_options, options.settings), "method")
        requested["method"] = merge(explicit, chosen)
    for named in (options.method, options.encoder, options.transform):
        if named is not None and is_plugin(named):
            allow_code(parse(named)[0])  # the user has named it
    check_code_allowed(requested)
    requested = without_other_digests(requested, merge(_initial_values(files), files.recipe))
    if name := value_of(section(requested, "encoder"), "name", ""):
        requested = merge(requested, {"encoder": {"name": timm_name(name)}})
    return requested


def _explicit_options(before: Values, after: Values) -> Values:
    """Return the part of a recipe file's method section that still applies.

    Options belong to a method and its preset. If the method changes, all options are dropped; if
    only the preset changes, options equal to the defaults of the old preset are dropped.
    """
    name = value_of(after, "name", DEFAULT_METHOD)
    if before.get("name", name) != name:
        return {}
    if is_plugin(name) or after.get("preset") == before.get("preset"):
        return before
    options = options_of(before)
    defaults = complete_options(name, value_of(before, "preset", "") or None, {})
    if not defaults.keys() <= options.keys():  # not a resolved recipe: the user wrote them all
        return before
    return before | {
        "options": {key: value for key, value in options.items() if defaults.get(key) != value}
    }


def _method(requested: Values) -> Values:
    """Return the method section with its preset and all options."""
    name = value_of(requested, "name", DEFAULT_METHOD)
    preset = preset_name(name, value_of(requested, "preset", "") or None)
    given = options_of(requested)
    build_method(name, preset, **given)  # raises an error for invalid options
    method = requested | {"name": name, "options": complete_options(name, preset, given)}
    if preset is not None:
        method["preset"] = preset
    return method


def _option_values(options: TrainOptions, files: InputFiles) -> Values:
    """Return the values that are set by named options, by section."""
    name, preset = parse(options.method) if options.method is not None else (None, None)
    weights = "scratch" if options.from_scratch else None
    frozen = False if options.unfreeze else options.frozen
    if options.weights is not None:
        weights = f"sha256:{files.weights_sha256}"
    sections: dict[str, Values] = {
        "data": {"source": options.source, "transform": options.transform},
        "encoder": {
            "name": ALIASES.get(options.encoder or "", options.encoder),
            "weights": weights,
            "frozen": frozen,
        },
        "method": {"name": name, "preset": preset},
        "pretrain": {
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "micro_batch": options.micro_batch,
        },
    }
    values: Values = {
        section: {key: value for key, value in fields.items() if value is not None}
        for section, fields in sections.items()
    }
    return values if options.seed is None else values | {"seed": options.seed}


def _initial_values(files: InputFiles) -> Values:
    """Return encoder, head and image preparation of the run to start from."""
    if files.initial_recipe is None:
        return {}
    before = files.initial_recipe.model_dump(mode="json", exclude_none=True)
    data_keys = ("image_size", "mean", "std", "interpolation", "crop_pct")
    keys = ("name", "code", "small_stem", "frozen")
    encoder = {key: before["encoder"][key] for key in keys if key in before["encoder"]}
    return {
        "data": {key: before["data"][key] for key in data_keys},
        "encoder": encoder | {"weights": f"sha256:{files.initial_sha256}"},
        "head": before["head"],
    }


def _encoder(requested: Values, facts: DatasetFacts, has_gpu: bool, unfreeze: bool) -> Values:
    """Return the encoder section for images of this size."""
    small = facts.native_size <= SMALL_IMAGE
    trained = unfreeze or requested.get("frozen") is False
    default = default_encoder(facts.native_size, len(facts), has_gpu=has_gpu, trained=trained)
    if not small and requested.get("weights", "pretrained") != "pretrained":
        default = ALIASES["fast"]  # a given file, or none, says nothing about other encoders
    name = value_of(requested, "name", default)
    own = is_plugin(name)
    random = name == "tiny" or (small and not own)
    if own:  # only the user knows; frozen random weights would be of no use
        random = not (requested.get("frozen") or unfreeze)
    weights = requested.get("weights", "scratch" if random else "pretrained")
    frozen = requested.get("frozen", weights != "scratch" and not has_gpu and not unfreeze)
    if (frozen or unfreeze) and weights == "scratch":
        option = "--frozen" if frozen else "--unfreeze"
        raise UserError(
            f"{option} requires pretrained weights, but this encoder starts from random weights: "
            f"add --weights FILE, or remove {option}"
        )
    return {
        "name": name,
        "weights": weights,
        "frozen": frozen,
        "fixed_norm": unfreeze,  # small batches have other statistics than the head has seen
        "small_stem": small and weights == "scratch" and has_small_stem(name),
        "frozen_views": 8 if has_gpu else 4,
    }


def _data(encoder: Values, facts: DatasetFacts) -> Values:
    """Return the image preparation that fits the encoder and the dataset."""
    preparation = cast("Values", dict(data_config(str(encoder["name"]))))
    if encoder["weights"] == "scratch" and facts.native_size <= SMALL_IMAGE:
        preparation |= {"image_size": max(8, facts.native_size), "crop_pct": 1.0}
        preparation["in_memory"] = True
    return preparation | dict(facts.view_defaults)


def _classifies(method: str, schedule: Values) -> bool:
    """Return whether stage 1 trains a classifier of the features, whose scale is not known."""
    own = issubclass(method_class(method), ClassifierOnFeatures)
    return own or bool(schedule.get("cross_entropy"))


def _schedule(encoder: Values, requested: Values, classifies: bool) -> Values:
    """Return the schedule of stage 1; the warm-up is at most a tenth of the epochs.

    The schedules of frozen and tiny encoders were chosen by experiment
    (docs/benchmarks/recipes.md); the others are common values. A classifier of pretrained features
    diverges with the rate of the pair losses, whose embeddings have unit length.
    """
    common = {"lr": 0.1, "warmup_epochs": 2.0, "clip_norm": CLIP_NORM}
    if encoder["frozen"]:
        schedule = common | {"epochs": 60, "weight_decay": 1e-3}
    elif requested.get("head_epochs"):
        # A rate of 0.1 destroyed pretrained features in small batches (docs/recommended.md).
        schedule = common | {"lr": 0.01, "encoder_lr": 0.3 if classifies else 0.1, "epochs": 20}
    elif encoder["name"] == "tiny":
        schedule = common | {"epochs": 20}
    elif encoder["weights"] == "scratch":
        schedule = common | {"epochs": 200, "warmup_epochs": 10.0}
    else:
        schedule = common | {"epochs": 50, "lr": 0.01}
    epochs = value_of(requested, "epochs", schedule["epochs"])
    return {**schedule, "warmup_epochs": min(schedule["warmup_epochs"], epochs / 10)}


def _batches(recipe: Recipe, labels: NDArray[np.int64]) -> Values:
    """Return size and kind of the batches for these training labels.

    A method that uses no labels gets shuffled batches: balanced ones would tell it the classes.
    """
    size = _batch_size(recipe, labels)
    kind, per_class = choose_batches(labels, min(recipe.pretrain.batch_size, size))
    if not method_class(recipe.method.name).uses_labels:
        kind = "shuffle"
    return {"batch_size": size, "batches": kind, "per_class": per_class}


def _batch_size(recipe: Recipe, labels: NDArray[np.int64]) -> int:
    """Return the default number of images per step."""
    largest = UNFREEZE_BATCH_SIZE if recipe.pretrain.head_epochs else MAX_BATCH_SIZE
    return min(largest, len(labels))
