"""A scikit-learn estimator for images and feature vectors."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from scs_supcon.data.arrays import dataset_from_images
from scs_supcon.device import find_compute, has_gpu
from scs_supcon.errors import UserError
from scs_supcon.inference import Model
from scs_supcon.inference.images import list_images
from scs_supcon.methods import parse
from scs_supcon.recipe import Values, merge, override
from scs_supcon.recipe.resolve import DatasetFacts, TrainOptions, resolve_recipe
from scs_supcon.training.input_files import read_input_files
from scs_supcon.training.pipeline import run
from scs_supcon.training.vectors import VectorModel, resolve_vector_recipe, train_on_vectors


class ContrastiveClassifier(TransformerMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Contrastive pretraining and a linear probe as a scikit-learn estimator.

    `X` is an array of images `(N, H, W, 3)` or grey images `(N, H, W)`, a list of image files, of
    Pillow images or of arrays of different sizes, or an array of feature vectors `(N, D)`.
    `transform` returns the common field, in which images of the same class are close.

    Args:
        method: method of stage 1, such as "scs_supcon" or "supcon"; `scs methods` lists all.
        encoder: for images: any timm model, or "tiny"; None chooses by image size.
        weights: for images: safetensors file with encoder weights; None for random weights.
        epochs: epochs of stage 1; None for the default.
        batch_size: rows per step; None for the default.
        settings: assignments to the recipe, such as ("pretrain.lr=0.05", "head.common_dim=64").
        device: "auto", "cpu", "cuda", …
        workers: for images: number of processes that load them; 0 uses the main process.
        random_state: seed, or `RandomState` instance, that determines all random numbers.

    Attributes:
        classes_: the labels, sorted.
        model_: the trained model, with `decide(features)` and `fields(features)`.
        n_features_in_: number of columns of the vectors; not set for images.
    """

    def __init__(
        self,
        method: str = "scs_supcon",
        *,
        encoder: str | None = None,
        weights: str | Path | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        settings: Sequence[str] = (),
        device: str = "cpu",
        workers: int = 0,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.weights = weights
        self.epochs = epochs
        self.batch_size = batch_size
        self.settings = settings
        self.device = device
        self.workers = workers
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train both stages.

        Args:
            X: images: an array `(N, H, W, 3)` or `(N, H, W)`, or a list of files, Pillow images or
                arrays; or vectors `(N, D)`.
            y: the label of each row.

        Returns:
            The fitted estimator.
        """
        images = _images(X)
        if images is None:
            X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(
                f"y has only one class ({self.classes_[0]!r}): a classifier needs at least two"
            )
        seed = int(check_random_state(self.random_state).randint(2**31))
        labels = labels.astype(np.int64)
        self.model_: Model | VectorModel
        if images is None:
            recipe = resolve_vector_recipe(labels, X.shape[1], seed, self._requested_values())
            self.model_ = train_on_vectors(X, labels, recipe, self.device)
        else:
            self.model_ = self._fit_images(images, labels, seed)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return calibrated probabilities `(N, classes)`, in the order of `classes_`."""
        features = self._features(X)
        probabilities: NDArray[np.float64] = self.model_.decide(features).probabilities.numpy()
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each row."""
        indices = self.predict_proba(X).argmax(1)
        labels: NDArray[Any] = self.classes_[indices]
        return labels

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return the common field, normalised to unit length.

        It has `common_dim` columns for vectors. For images the default method fuses it with the
        whitened features of the encoder.
        """
        features = self._features(X)
        common, _ = self.model_.fields(features)
        vectors: NDArray[np.float64] = common.numpy()
        return vectors

    def _features(self, X: Any) -> Tensor:
        check_is_fitted(self)
        model = self.model_
        if isinstance(model, VectorModel):
            return model.features(validate_data(self, X, dtype=np.float64, reset=False))
        images = _images(X)
        if images is None:
            raise UserError(f"X must be images as in fit, got an array of shape {np.shape(X)}")
        return model.features(images)

    def _requested_values(self) -> Values:
        name, preset = parse(self.method)
        method = {"name": name} | ({"preset": preset} if preset else {})
        numbers = {"epochs": self.epochs, "batch_size": self.batch_size}
        pretrain = {key: value for key, value in numbers.items() if value is not None}
        return override(merge({"method": method}, {"pretrain": pretrain}), self.settings)

    def _fit_images(
        self, images: list[Path | Image.Image], labels: NDArray[np.int64], seed: int
    ) -> Model:
        options = TrainOptions(
            source="images",
            method=self.method,
            encoder=self.encoder,
            weights=Path(self.weights) if self.weights else None,
            from_scratch=self.weights is None,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=seed,
            settings=("data.test_share=0", *self.settings),
        )
        names = tuple(str(label) for label in range(len(self.classes_)))
        dataset = dataset_from_images(images, labels, names)
        compute = find_compute(self.device, self.workers, offline=True)
        facts, files = DatasetFacts.of(dataset), read_input_files(options)
        recipe = resolve_recipe(options, facts, files, has_gpu=has_gpu(compute.device))
        with tempfile.TemporaryDirectory(prefix="scs-images-") as folder:
            return run(
                recipe, dataset, Path(folder) / "run", compute, weights=options.weights
            ).model


def _images(X: Any) -> list[Path | Image.Image] | None:
    """Return X as a list of images, or None if it holds feature vectors."""
    if isinstance(X, str | Path):
        raise UserError(f"X must be a list of images, got {str(X)!r}: give [{str(X)!r}, …]")
    if getattr(X, "ndim", 0) == 1:  # also a column of a data frame
        X = np.asarray(X)
    if isinstance(X, np.ndarray):
        if X.ndim not in (1, 3, 4):
            return None
        # An array (N, H, W) holds grey images, never a single one in colour.
        X = [*(X[..., None] if X.ndim == 3 else X)]
    if not isinstance(X, Sequence) or not _is_image(X[:1]):
        return None
    images = [image.image for image in list_images(X)]
    if len(images) != len(X):
        raise UserError(f"X must have one image per item, got {len(images)} in {len(X)} items")
    return images


def _is_image(first: Sequence[Any]) -> bool:
    """Return whether the first item of a list is an image."""
    kinds = str | Path | Image.Image
    return any(isinstance(i, kinds) or (isinstance(i, np.ndarray) and i.ndim > 1) for i in first)
