"""Train the heads again without each fold of the training images, to calibrate on held-out images.

Only with a frozen encoder, where this is cheap: an encoder would have to be trained again.
"""

import copy
import time

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.splits import divide_into_folds
from scs_supcon.data.transforms import seeded
from scs_supcon.methods import method_class, probe_input_for
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.nn.head import remove_erased_style
from scs_supcon.nn.network import Network
from scs_supcon.nn.whitening import fit_whitenings
from scs_supcon.progress import Display
from scs_supcon.recipe import Recipe
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.fusion import HeldOut, held_out_similarities, join_held_out
from scs_supcon.training.pretrain import (
    make_method,
    pretrain,
    set_up_method,
    training_set_from_features,
)


def out_of_fold_similarities(
    untrained: Network | None,
    features: Tensor | None,
    images: ImageDataset,
    train: NDArray[np.int64],
    recipe: Recipe,
    fabric: Fabric,
    run: RunDir,
    display: Display,
) -> HeldOut | None:
    """Return the similarities of every training image to models that were trained without it.

    Returns None if the recipe does not ask for them, or without a frozen encoder.

    Each fold is a stage with checkpoints of its own, so that it can be resumed.

    Args:
        untrained: the part of the network to train, with its initial weights.
        features: (n, 1 + views, F) cached features of the training images, of a frozen encoder.
        images: the dataset.
        train: indices of the training images.
        recipe: of the run.
        fabric: where to compute.
        run: stores checkpoints and metrics.
        display: shows progress.
    """
    if untrained is None or features is None or not recipe.fusion.out_of_fold:
        return None
    # Early stopping would need a validation set in every fold.
    recipe = recipe.model_copy(
        update={"pretrain": recipe.pretrain.model_copy(update={"patience": 0})}
    )
    untrained = copy.deepcopy(untrained)
    if _style_is_separate(recipe):
        remove_erased_style(untrained.projection)
        head = recipe.head.model_copy(update={"style_dim": 0})
        recipe = recipe.model_copy(update={"head": head})
    classes, count = len(images.classes), min(recipe.fusion.folds, len(train))
    folds = divide_into_folds(images, train, count, recipe.split_seed)
    labels = torch.from_numpy(images.labels[train])
    parts = []
    start = time.monotonic()
    for fold in range(count):
        display.later = _seconds_later(time.monotonic() - start, fold, count, display.later)
        held_out, rest = (torch.from_numpy(rows) for rows in _divide(folds == fold))
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
            title=f"out of fold {fold + 1} of {count}",
        )
        rows = features[rest, 0], labels[rest]
        parts.append(
            held_out_similarities(
                fit_whitenings(*rows, recipe.fusion.shrinkage, recipe.fusion.directions),
                network.projection,
                probe_input_for(method, frozen=True, setting=recipe.probe.input),
                recipe.head.common_dim,
                rows,
                (features[held_out, 0], labels[held_out]),
                classes,
            )
        )
    display.later = 0.0
    return join_held_out(parts)


def _style_is_separate(recipe: Recipe) -> bool:
    """Return whether the common field is trained without any influence of the style field."""
    return (
        recipe.head.style_input == "erased"
        and issubclass(method_class(recipe.method.name), CommonStyleMethod)
        and not recipe.method.options.get("style_decorrelation")
    )


def _seconds_later(elapsed: float, done: int, count: int, estimated: float) -> float:
    """Return the seconds of the folds after the current one."""
    return (elapsed / done if done else estimated / count) * (count - done - 1)


def _divide(selected: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.flatnonzero(selected), np.flatnonzero(~selected)
