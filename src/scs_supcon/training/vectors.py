"""Both stages on feature vectors instead of images: what the scikit-learn estimator trains.

Columns are standardised. A view of a vector is the vector with noise added and, for wide vectors,
some columns left out; the rest is what a run on frozen features does.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
from scs_supcon.methods import Network, method_class, probe_input_for
from scs_supcon.nn.head import Projection
from scs_supcon.recipe import Recipe, Values, make_recipe, merge, write_toml
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.pipeline import make_method
from scs_supcon.training.pretrain import from_features, pretrain, task_of
from scs_supcon.training.probe import ProbeData, fit_probe, with_own_classifier
from scs_supcon.training.stage2 import see

NOISE = 0.2  # of a column's standard deviation
VIEWS = 4
WIDE = 64  # from so many columns on, leaving some out still shows what a vector is
MOST_PER_BATCH = 256


@dataclass(frozen=True)
class VectorModel:
    """What was learned: standardise, project, judge. Float64, and always as many rows at a time."""

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
        """Return the common and style vectors of standardised vectors."""
        return self.classifier.fields(features)


def resolve_vector_recipe(
    labels: NDArray[np.int64], width: int, seed: int, asked: Values
) -> Recipe:
    """The whole recipe: what suits the method and the vectors, then what was asked for."""
    size = min(MOST_PER_BATCH, asked.get("pretrain", {}).get("batch_size", MOST_PER_BATCH))
    kind, per_class = choose_batches(labels, min(size, len(labels)))
    epochs = asked.get("pretrain", {}).get("epochs", 60)
    method = asked.get("method", {})
    suited = {
        "seed": seed,
        "data": {"source": "vectors"},
        "encoder": {
            "name": "vectors",
            "weights": "scratch",
            "frozen": True,
            "frozen_views": VIEWS,
            "frozen_dropout": 0.5 if width >= WIDE else 0.0,
        },
        "head": {"hidden": max(width, 128)},
        "pretrain": {
            "epochs": epochs,
            "lr": 0.1,
            "weight_decay": 1e-3,
            "clip_norm": 1.0,
            "warmup_epochs": min(2.0, epochs / 10),
            "batch_size": min(size, len(labels)),
            "batches": kind,
            "per_class": per_class,
        },
    }
    made = method_class(method.get("name", "scs_supcon"))
    return make_recipe(merge(suited, made.recipe_defaults(method.get("preset")), asked))


def train_on_vectors(
    vectors: NDArray[np.float64], labels: NDArray[np.int64], recipe: Recipe, device: str = "cpu"
) -> VectorModel:
    """Train both stages on vectors `(n, d)` of classes 0 … K − 1."""
    rows = _rows(labels)
    splits = assign_splits(rows, recipe.data.val_share, 0.0, recipe.split_seed)
    learn = np.flatnonzero(splits == "train")
    # With one vector a class nothing can be set aside: the classifier is chosen on what it learned.
    choose = np.flatnonzero(splits == "val") if "val" in splits else learn
    mean, scale = vectors[learn].mean(0), vectors[learn].std(0)
    scale[scale <= 1e-12 * np.abs(mean)] = 1.0  # a constant column says nothing
    features = torch.from_numpy((vectors - mean) / scale).float()
    fabric = make_fabric(device, recipe.pretrain.precision)
    with (
        tempfile.TemporaryDirectory(prefix="scs-vectors-") as folder,
        RunDir.open(Path(folder) / "run", write_toml(recipe)) as run,
        seeded(recipe.seed, 1),
    ):
        width = features.shape[1]
        head = recipe.head
        projection = Projection(width, head.dim, head.hidden, head.centre)
        network = Network(nn.Identity(), projection)
        method = make_method(recipe)
        method.setup(task_of(network, labels[learn], len(rows.classes), width, recipe))
        views = _views(features[learn], recipe.encoder.frozen_views)
        training = from_features(views, rows, learn, recipe, method.views)
        pretrain(fabric, run, network, method, training, recipe)
        reads = probe_input_for(method, frozen=True)
        train = see(views, learn, labels, projection, reads, head.common_dim)
        val = see(features[choose][:, None], choose, labels, projection, reads, head.common_dim)
        data = ProbeData(
            train.readout, train.labels, val.readout[:, 0], val.labels, len(rows.classes)
        )
        probe = fit_probe(fabric, run, "probe", data, recipe.probe, recipe.seed)
        own = method.linear_classifier(reads)
        if own is not None:
            probe = with_own_classifier(probe, own, val.readout[:, 0], val.labels)
    probe_inputs = ProbeInputs(projection, reads, head)
    rule = fit_decision_rule(
        probe.classifier,
        train=(in_passes(probe_inputs, train.features[:, 0])[0], train.labels),
        val=(in_passes(probe_inputs, val.features[:, 0])[0], val.labels),
        probe_input=reads,
        boundary=method.decision_boundary(),
    )
    return VectorModel(mean, scale, FeatureClassifier(probe_inputs, rule))


def _views(features: Tensor, views: int) -> Tensor:
    """The vectors themselves, then with noise: `(n, 1 + views, d)`."""
    noise = NOISE * torch.randn(len(features), views, features.shape[1])
    return torch.cat([features[:, None], features[:, None] + noise], 1)


def _rows(labels: NDArray[np.int64]) -> ImageDataset:
    """Vectors have names and classes as images do, and nothing to open."""

    def closed(index: int, at_least: int = 0) -> None:
        raise NotImplementedError(f"row {index} is a vector")

    return ImageDataset(
        names=tuple(f"row {index}" for index in range(len(labels))),
        labels=labels,
        classes=tuple(str(label) for label in range(int(labels.max()) + 1)),
        splits=None,
        groups=None,
        folds=None,
        open=closed,  # type: ignore[arg-type]  # nobody opens a vector
        file_hash=str,
        native_size=0,
    )
