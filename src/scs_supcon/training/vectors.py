"""Both stages on feature vectors instead of images, for the scikit-learn estimator.

Columns are standardised. A view of a vector is the vector with added noise and, for wide vectors,
with dropped columns. Otherwise training is the same as on frozen features.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.sampler import choose_batches
from scs_supcon.data.splits import assign_splits
from scs_supcon.data.transforms import seeded
from scs_supcon.inference.decision import (
    Decision,
    FeatureClassifier,
    ProbeInputs,
    fit_decision_rule,
    in_passes,
)
from scs_supcon.methods import method_class, probe_input_for
from scs_supcon.nn.build import build_network
from scs_supcon.recipe import Recipe, Values, make_recipe, merge, write_toml
from scs_supcon.recipe.resolve import CLIP_NORM, DEFAULT_METHOD
from scs_supcon.recipe.toml import section, value_of
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.features import add_fitted_style, probe_inputs
from scs_supcon.training.pretrain import (
    make_method,
    pretrain,
    set_up_method,
    training_set_from_features,
    validation_set_from_features,
)
from scs_supcon.training.probe import ProbeData, choose_classifier, fit_probe

NOISE = 0.2  # standard deviations of a column
VIEWS = 4
WIDE = 64  # vectors with this many columns are still recognisable without half of them
MAX_BATCH_SIZE = 256


@dataclass(frozen=True)
class VectorModel:
    """A trained model of vectors. Computes in float64, in passes of a fixed number of rows."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    classifier: FeatureClassifier

    def features(self, vectors: NDArray[np.float64]) -> Tensor:
        """Return standardised vectors."""
        return torch.from_numpy((vectors - self.mean) / self.scale).float()

    def decide(self, features: Tensor) -> Decision:
        """Return the decisions for standardised vectors."""
        return self.classifier.decide(features)

    def fields(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the common and style field of standardised vectors."""
        return self.classifier.fields(features)


def resolve_vector_recipe(
    labels: NDArray[np.int64], feature_dim: int, seed: int, requested: Values
) -> Recipe:
    """Return the complete recipe: defaults for vectors and method, then the requested values."""
    settings, method = section(requested, "pretrain"), section(requested, "method")
    size = min(value_of(settings, "batch_size", MAX_BATCH_SIZE), MAX_BATCH_SIZE, len(labels))
    kind, per_class = choose_batches(labels, size)
    chosen = method_class(value_of(method, "name", DEFAULT_METHOD))
    if not chosen.uses_labels:
        kind = "shuffle"
    epochs = value_of(settings, "epochs", 60)
    defaults: Values = {
        "seed": seed,
        "data": {"source": "vectors"},
        "encoder": {
            "name": "vectors",
            "weights": "scratch",
            "frozen": True,
            "frozen_views": VIEWS,
            "frozen_dropout": 0.5 if feature_dim >= WIDE else 0.0,
        },
        "head": {"hidden": max(feature_dim, 128)},
        "pretrain": {
            "epochs": epochs,
            "lr": 0.1,
            "weight_decay": 1e-3,
            "clip_norm": CLIP_NORM,
            "warmup_epochs": min(2.0, epochs / 10),
            "batch_size": size,
            "batches": kind,
            "per_class": per_class,
        },
    }
    method_defaults = chosen.recipe_defaults(value_of(method, "preset", "") or None)
    return make_recipe(merge(defaults, method_defaults, requested))


def train_on_vectors(
    vectors: NDArray[np.float64], labels: NDArray[np.int64], recipe: Recipe, device: str = "cpu"
) -> VectorModel:
    """Train both stages on vectors (n, d) of classes 0 … K − 1 and return the model."""
    rows = _vector_dataset(labels)
    classes = len(rows.classes)
    splits = assign_splits(rows, recipe.data.val_share, 0.0, recipe.split_seed)
    train = np.flatnonzero(splits == "train")
    # With one vector per class there is no validation vector: select on the training vectors.
    val = np.flatnonzero(splits == "val") if "val" in splits else train
    mean, scale = vectors[train].mean(0), vectors[train].std(0)
    scale[scale <= 1e-12 * np.abs(mean)] = 1.0  # a constant column carries no information
    features = torch.from_numpy((vectors - mean) / scale).float()
    train_labels, val_labels = (torch.from_numpy(labels[part]) for part in (train, val))
    fabric = make_fabric(device, recipe.pretrain.precision)
    with (
        tempfile.TemporaryDirectory(prefix="scs-vectors-") as folder,
        RunDir.open(Path(folder) / "run", write_toml(recipe)) as run_dir,
        seeded(recipe.seed, 1),
    ):
        network = build_network(recipe, features.shape[1])
        method = make_method(recipe)
        set_up_method(method, network, labels[train], classes, recipe)
        views = _add_noise(features[train], recipe.encoder.frozen_views)
        training_set = training_set_from_features(views, rows, train, recipe, method.views)
        validation = validation_set_from_features(
            (features[train], train_labels), (features[val], val_labels)
        )
        pretrain(fabric, run_dir, network, method, training_set, recipe, validation=validation)
        probe_input = probe_input_for(method, frozen=True, setting=recipe.probe.input)
        train_inputs, val_inputs = (
            probe_inputs(view, network.projection, probe_input, recipe.head.common_dim)
            for view in (views, features[val][:, None])
        )
        data = ProbeData(train_inputs, train_labels, val_inputs[:, 0], val_labels, classes)
        probe = fit_probe(fabric, run_dir, "probe", data, recipe.probe, recipe.seed)
        chosen, probe_input = choose_classifier(
            probe, method, probe_input, (features[val], val_inputs[:, 0], val_labels)
        )
    projection, probe_input = add_fitted_style(
        network.projection, probe_input, views, train_labels, classes, recipe.head
    )
    inputs = ProbeInputs(projection, probe_input, recipe.head)
    rule = fit_decision_rule(
        chosen.classifier,
        train=(in_passes(inputs, features[train])[0], train_labels),
        val=(in_passes(inputs, features[val])[0], val_labels),
        probe_input=probe_input,
    )
    return VectorModel(mean, scale, FeatureClassifier(inputs, rule))


def _add_noise(features: Tensor, views: int) -> Tensor:
    """Return (n, 1 + views, d): the vectors, then views of them with noise."""
    noise = NOISE * torch.randn(len(features), views, features.shape[1])
    return torch.cat([features[:, None], features[:, None] + noise], 1)


def _vector_dataset(labels: NDArray[np.int64]) -> ImageDataset:
    """Return a dataset with names and classes, but without images."""

    def cannot_open(index: int, at_least: int = 0) -> None:
        raise NotImplementedError(f"row {index} is a vector")

    return ImageDataset(
        names=tuple(f"row {index}" for index in range(len(labels))),
        labels=labels,
        classes=tuple(str(label) for label in range(int(labels.max()) + 1)),
        splits=None,
        groups=None,
        folds=None,
        open=cannot_open,  # type: ignore[arg-type]  # vectors are never opened
        file_hash=str,
        native_size=0,
    )
