"""From what a person asked for, and what the data is like, to one whole recipe.

Three layers, the later ones winning: what suits the data, the encoder and the method; a recipe
file; the options of the command line.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.sampler import choose_batches
from scs_supcon.data.splits import assign_splits, fold_splits
from scs_supcon.errors import UserError
from scs_supcon.inference.files import WEIGHTS, read_model
from scs_supcon.methods import Method, code_digest, is_plugin, method_class, parse
from scs_supcon.nn.catalogue import data_config
from scs_supcon.nn.stems import has_small_stem
from scs_supcon.recipe import Recipe, Values, make_recipe, merge, override, read_recipe

SMALL = 64  # images up to this many pixels get an encoder made for small images
MOST_PER_BATCH = 256


@dataclass(frozen=True)
class TrainOptions:
    """What a person asked for; None is left to us."""

    source: str
    method: str | None = None
    encoder: str | None = None
    weights: Path | None = None
    from_scratch: bool = False
    frozen: bool | None = None
    epochs: int | None = None
    batch_size: int | None = None
    seed: int | None = None
    recipe: Path | None = None
    init_from: Path | None = None
    assignments: Sequence[str] = ()
    micro_batch: int | None = None


def resolve_recipe(options: TrainOptions, images: ImageDataset, accelerator: bool) -> Recipe:
    """Return the whole recipe.

    Args:
        wishes: what was asked for.
        images: the data, for its size and its classes.
        accelerator: whether there is more than a CPU.
    """
    asked = _asked(options)
    encoder = _encoder(asked.get("encoder", {}), images, accelerator)
    data = _data(encoder, images) | asked.get("data", {})
    method = asked.get("method", {})
    made = method_class(method.get("name", "scs_supcon"))
    own = _own_code(method, made)
    schedule = _pretrain(encoder, asked.get("pretrain", {}))
    suited = merge(
        {"encoder": encoder, "data": data, "pretrain": schedule, "method": own},
        made.recipe_defaults(method.get("preset")),
    )
    first = make_recipe(merge(suited, asked))
    splits = split_dataset(images, first)
    if "val" not in splits:
        raise UserError(
            "no image is left for validation, which chooses the classifier: add images, or "
            "set data.val_share above 0"
        )
    labels = images.labels[splits == "train"]
    return make_recipe(merge(suited, {"pretrain": _batches(first, labels)}, asked))


def split_dataset(images: ImageDataset, recipe: Recipe) -> NDArray[np.str_]:
    """ "train", "val" or "test" for every image."""
    data = recipe.data
    if data.folds is not None and data.fold is not None:
        return fold_splits(images, data.fold, data.folds, data.val_share, recipe.split_seed)
    return assign_splits(images, data.val_share, data.test_share, recipe.split_seed)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror}") from error


def _asked(options: TrainOptions) -> Values:
    before = _as_before(options.init_from) if options.init_from else {}
    file = _from_file(options.recipe) if options.recipe else {}
    given = _given(options)
    name = given["method"].get("name")
    if name and file.get("method", {}).get("name", name) != name:
        del file["method"]  # another method's preset and options say nothing about this one
    asked = override(merge(before, file, given), options.assignments)
    _only_code_that_was_named(asked.get("method", {}).get("name", ""), name)
    return asked


def _only_code_that_was_named(method: str, named: str | None) -> None:
    """A file may hold the name of a method; importing it takes a person who names it too."""
    if is_plugin(method) and method != named:
        raise UserError(
            f"the recipe names the method {method}, which is code from outside this package: name "
            f"it on the command line too, and only if you trust it: --method {method}"
        )


def _own_code(asked: Values, made: type[Method]) -> Values:
    """Code from outside this package stands in the recipe by its digest, as data does."""
    if not is_plugin(asked.get("name", "")):
        return {}
    found = code_digest(made)
    if asked.get("code", found) != found:
        raise UserError(
            f"{asked['name']} is not the code this recipe was made for: bring that back, or leave "
            "out method.code to train with this"
        )
    return {"code": found}


def _given(options: TrainOptions) -> Values:
    """What the options of the command line say, section by section."""
    name, preset = parse(options.method) if options.method is not None else (None, None)
    weights = "scratch" if options.from_scratch else None
    if options.weights is not None:
        weights = f"sha256:{file_digest(options.weights)}"
    sections: Values = {
        "data": {"source": options.source},
        "encoder": {"name": options.encoder, "weights": weights, "frozen": options.frozen},
        "method": {"name": name, "preset": preset},
        "pretrain": {
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "micro_batch": options.micro_batch,
        },
    }
    given: Values = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    return given if options.seed is None else given | {"seed": options.seed}


def _from_file(path: Path) -> Values:
    values = read_recipe(path)
    try:
        make_recipe(merge({"data": {"source": "?"}}, values))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return values


def _as_before(run: Path) -> Values:
    """Encoder, head and preparation of the images as in the run that is started from."""
    facts, _ = read_model(run)
    before = facts.recipe.model_dump(mode="json")
    kept = ("image_size", "mean", "std", "interpolation", "crop_pct")
    folder = run if (run / WEIGHTS).is_file() else run / "model"
    encoder = {key: before["encoder"][key] for key in ("name", "small_stem", "frozen")}
    return {
        "data": {key: before["data"][key] for key in kept},
        "encoder": encoder | {"weights": f"sha256:{file_digest(folder / WEIGHTS)}"},
        "head": before["head"],
    }


def _encoder(asked: Values, images: ImageDataset, accelerator: bool) -> Values:
    small = images.native_size <= SMALL
    tiny = images.native_size <= 32 and len(images) <= 5000
    usual = "tiny" if tiny else "resnet18" if small else "tf_efficientnet_lite0"
    name = asked.get("name", usual)
    weights = asked.get("weights", "scratch" if name == "tiny" or small else "pretrained")
    frozen = asked.get("frozen", weights != "scratch" and not accelerator)
    if frozen and weights == "scratch":
        raise UserError(
            "--frozen keeps the encoder as it is, and this one is random: give --weights FILE, "
            "or leave out --frozen"
        )
    return {
        "name": name,
        "weights": weights,
        "frozen": frozen,
        "small_stem": small and weights == "scratch" and has_small_stem(name),
        "frozen_views": 8 if accelerator else 4,
    }


def _data(encoder: Values, images: ImageDataset) -> dict[str, Any]:
    made_for: dict[str, Any] = dict(data_config(encoder["name"]))
    if encoder["weights"] == "scratch" and images.native_size <= SMALL:
        made_for |= {"image_size": max(8, images.native_size), "crop_pct": 1.0}
    return made_for | dict(images.view_defaults)


def _pretrain(encoder: Values, asked: Values) -> Values:
    """Schedules for four cases; short ones warm up for less.

    The first two were chosen by trying (docs/benchmarks/recipes.md); the others are the usual ones.
    """
    usual = {"lr": 0.1, "warmup_epochs": 2.0, "clip_norm": 1.0}
    if encoder["frozen"]:
        tried = usual | {"epochs": 60, "weight_decay": 1e-3}
    elif encoder["name"] == "tiny":
        tried = usual | {"epochs": 20}
    elif encoder["weights"] == "scratch":
        tried = usual | {"epochs": 200, "warmup_epochs": 10.0}
    else:
        tried = usual | {"epochs": 50, "lr": 0.01}
    epochs = asked.get("epochs", tried["epochs"])
    return tried | {"warmup_epochs": min(tried["warmup_epochs"], epochs / 10)}


def _batches(recipe: Recipe, labels: NDArray[np.int64]) -> Values:
    size = min(MOST_PER_BATCH, len(labels))
    asked = recipe.pretrain.batch_size
    kind, per_class = choose_batches(labels, min(asked, size))
    return {"batch_size": size, "batches": kind, "per_class": per_class}
