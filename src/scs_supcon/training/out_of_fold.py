"""Train the heads again without each fold of the training images, to calibrate on held-out images.

Only with a frozen encoder, where this is cheap: an encoder would have to be trained again.
"""

import copy
import time
from collections.abc import Sequence

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.splits import divide_into_folds
from scs_supcon.data.transforms import seeded
from scs_supcon.methods import probe_input_for
from scs_supcon.nn.network import Network
from scs_supcon.nn.whitening import fit_whitenings
from scs_supcon.progress import Display
from scs_supcon.recipe import Recipe
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.features import SplitFeatures
from scs_supcon.training.fusion import HeldOut, held_out_similarities, join_held_out
from scs_supcon.training.pretrain import (
    make_method,
    pretrain,
    set_up_method,
    training_set_from_features,
)

Fold = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Positions of the training images that a fold holds out, and of the others."""


def out_of_fold_similarities(
    untrained: Network,
    features: Tensor,
    folds: Sequence[Fold],
    val: SplitFeatures,
    images: ImageDataset,
    train: NDArray[np.int64],
    recipe: Recipe,
    fabric: Fabric,
    run: RunDir,
    display: Display,
) -> HeldOut:
    """Return the similarities of the training images to models that were trained without them.

    Each fold is a stage with checkpoints of its own, so that it can be resumed.

    Args:
        untrained: the part of the network to train, with its initial weights.
        features: (n, 1 + views, F) cached features of the training images; columns that `val` does
            not have are taps, which only training uses.
        folds: from `plan_folds`, at least one.
        val: the validation images, which form pairs with the images that are held out.
        images: the dataset.
        train: indices of the training images.
        recipe: of the run.
        fabric: where to compute.
        run: stores checkpoints and metrics.
        display: shows progress.
    """
    recipe, classes = fold_phase(recipe), len(images.classes)
    labels, width = torch.from_numpy(images.labels[train]), val.features.shape[2]
    parts = []
    start = time.monotonic()
    for fold, indices in enumerate(folds):
        display.later = _seconds_later(time.monotonic() - start, fold, len(folds), display.later)
        held_out, rest = map(torch.from_numpy, indices)
        network = copy.deepcopy(untrained)
        with seeded(recipe.seed, 2, fold):
            method = make_method(recipe, fabric.world_size)
            set_up_method(method, network, images.labels[train[rest]], classes, recipe)
        training_set = training_set_from_features(
            features, images, train[rest], recipe, method.views, rest
        )
        pretrain(
            fabric,
            run,
            network,
            method,
            training_set,
            recipe,
            display,
            name=f"fold{fold + 1}",
            title=f"out of fold {fold + 1} of {len(folds)}",
        )
        rows = features[rest, 0, :width], labels[rest]
        parts.append(
            held_out_similarities(
                fit_whitenings(*rows, recipe.fusion.shrinkage, recipe.fusion.directions),
                network.projection,
                probe_input_for(method, frozen=True, setting=recipe.probe.input),
                recipe.head.common_dim,
                rows,
                (features[held_out, 0, :width], labels[held_out]),
                classes,
                (val.features[:, 0], val.labels),
            )
        )
    display.later = 0.0
    return join_held_out(parts)


def fold_phase(recipe: Recipe) -> Recipe:
    """Return the recipe of a fold: without early stopping, which would need other images."""
    return recipe.model_copy(
        update={"pretrain": recipe.pretrain.model_copy(update={"patience": 0})}
    )


def plan_folds(images: ImageDataset, splits: NDArray[np.str_], recipe: Recipe) -> list[Fold]:
    """Return the folds of the training images, as positions among them.

    There are none if the recipe does not ask for them, or if fewer training images than validation
    images can be held out: then the validation images are used.
    """
    train = np.flatnonzero(splits == "train")
    if not (recipe.encoder.frozen and recipe.fusion.out_of_fold):
        return []
    count = min(recipe.fusion.folds, len(train))
    numbers = divide_into_folds(images, train, count, recipe.split_seed)
    folds = usable_folds(numbers, images.labels[train])
    enough = sum(len(held_out) for held_out, _ in folds) >= np.sum(splits == "val")
    return folds if enough else []


def usable_folds(numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> list[Fold]:
    """Return the images (held out, others) of each fold that can be used.

    An image whose class has no other image outside of its fold cannot be recognised: it is not held
    out. Without it a fold may have nothing to test, or too little to train.

    Args:
        numbers: (n,) fold of each image; a fold may be empty.
        labels: (n,)
    """
    folds = []
    for number in np.unique(numbers):
        held_out, others = np.flatnonzero(numbers == number), np.flatnonzero(numbers != number)
        held_out = held_out[np.isin(labels[held_out], labels[others])]
        if len(held_out) and len(np.unique(labels[others])) > 1:
            folds.append((held_out, others))
    return folds


def _seconds_later(elapsed: float, done: int, count: int, estimated: float) -> float:
    """Return the seconds of the folds after the current one."""
    return (elapsed / done if done else estimated / count) * (count - done - 1)
