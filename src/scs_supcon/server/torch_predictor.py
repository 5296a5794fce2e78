"""A saved model of this package behind the interface of the server."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from scs_supcon.data.transforms import eval_view
from scs_supcon.inference.heat_map import heat_map
from scs_supcon.inference.loading import load
from scs_supcon.inference.model import Model
from scs_supcon.nn.encode import encode, on_cpu, pass_size
from scs_supcon.server.predictor import Floats, ImageDecision, Pixels, TrainingGallery


class TorchPredictor:
    """A model in torch; see `server.predictor.Predictor`.

    As in `Model.encode`, every pass of the encoder uses one thread and passes run in parallel, so
    that predictions equal those of `scs predict`.

    Args:
        model: the model.
        gallery: its training images.
    """

    def __init__(self, model: Model, gallery: TrainingGallery) -> None:
        self.model, self.gallery = model, gallery
        self.threads = 1  # `decide` uses several threads itself
        self.classes = model.classes
        self.thresholds: Floats = model.classifier.rule.thresholds.numpy()
        self.boundary: float | None = model.info.pairs.boundary
        self.facts: Mapping[str, Any] = _facts(model)
        self._view = eval_view(model.info.recipe.data)
        self._size = pass_size(model.folded_encoder, model.info.recipe.data.image_size**2)
        threads = torch.get_num_threads() if on_cpu(model.encoder) else 1
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def prepare(self, image: Image.Image) -> Pixels:
        """Return the pixels (size, size, 3) that the model sees."""
        return np.asarray(self._view.crop(image))

    def decide(self, pixels: Sequence[Pixels]) -> list[ImageDecision]:
        """Return the decisions for prepared images."""
        views = torch.stack([self._normalised(image) for image in pixels])
        chunks = torch.split(views, self._size)
        encoder = self.model.folded_encoder
        features = list(self._pool.map(lambda chunk: encode(encoder, chunk), chunks))
        rows = torch.from_numpy(np.concatenate(features))
        decision = self.model.decide(rows)
        common, style = self.model.fields(rows)
        return [
            ImageDecision(
                decision.probabilities[i].numpy(),
                int(decision.nearest[i]),
                float(decision.similarity[i]),
                bool(decision.unknown[i]),
                common[i].numpy(),
                style[i].numpy(),
            )
            for i in range(len(rows))
        ]

    def heat_map(self, pixels: Pixels, label: int) -> Floats | None:
        """Return how much each region speaks for a class."""
        return heat_map(self.model, self._normalised(pixels), label)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False)

    def _normalised(self, pixels: Pixels) -> Tensor:
        tensor = torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float().div_(255)
        return tensor.sub_(self._view.mean).div_(self._view.std).contiguous()


def load_predictor(
    run: Path, names: Mapping[str, str] | None = None, device: str = "cpu"
) -> TorchPredictor:
    """Load the model of a run.

    Args:
        run: a run directory or a model directory.
        names: other names for the training images.
        device: where the encoder runs.
    """
    model = load(run, device)
    names = names or {}
    gallery = TrainingGallery(
        names=tuple(names.get(name, name) for name in model.info.image_names),
        labels=model.gallery.labels.numpy(),
        common=model.gallery.vectors.numpy(),
        style=model.gallery.style.numpy(),
    )
    return TorchPredictor(model, gallery)


def _facts(model: Model) -> dict[str, Any]:
    recipe = model.info.recipe
    return {
        "encoder": recipe.encoder.name,
        "frozen": recipe.encoder.frozen,
        "method": recipe.method.name,
        "image_size": recipe.data.image_size,
        "images": model.info.counts,
        "metrics": model.info.metrics.model_dump(exclude_none=True),
        "rejection": model.info.rejection.model_dump(),
        "runtime": f"torch {torch.__version__}",
        "heat_map": True,
    }
