"""The finished artefact: images in; names, probabilities, embeddings and neighbours out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.inference.card import write_card
from scs_supcon.inference.decision import Decision, DecisionRule, fields_of, judged
from scs_supcon.inference.facts import Facts
from scs_supcon.inference.files import write_model
from scs_supcon.inference.graph import Graph
from scs_supcon.inference.reader import Item, Progress, Reader, no_progress
from scs_supcon.inference.readout import Network, ReadOut
from scs_supcon.inference.types import Embeddings, Failure, Neighbour, Prediction, Predictions
from scs_supcon.nn.encoder import Encoder


@dataclass(frozen=True)
class Gallery:
    """Embeddings that are kept to look up neighbours: unit vectors (n, D), classes (n,)."""

    vectors: Tensor
    labels: Tensor


class Model:
    """A trained classifier of images. Get one from `load` or `build_model`.

    The encoder and all that follows work in passes of one size: what an image gets depends neither
    on the images beside it nor on whether it is judged at the end of training or years later.
    """

    def __init__(
        self, facts: Facts, network: Network, judge: DecisionRule, gallery: Gallery
    ) -> None:
        self.facts = facts
        self._reader = Reader(network.encoder, facts.recipe.data)
        self._read_out = ReadOut(network, facts.recipe.head)
        self._judge = judge
        self._gallery = gallery

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes, added ones last."""
        return self.facts.classes

    @property
    def encoder(self) -> Encoder:
        """From views to features, in the layout in which it computes."""
        return cast("Encoder", self._reader.encoder)

    @property
    def gallery(self) -> Gallery:
        """The embeddings that are kept, in the order of `facts.images`."""
        return self._gallery

    def predict(
        self, images: Sequence[Item], topk: int = 5, progress: Progress = no_progress
    ) -> Predictions:
        """Name each image, by path or as a PIL image; unreadable ones come back as failures."""
        if topk < 1:
            raise UserError(f"topk is {topk}: ask for at least 1 class")
        read = self._reader.read(images, progress)
        judgement = self.judge(read.features)
        best = judgement.probabilities.sort(dim=1, descending=True, stable=True)
        records = []
        for row, name in enumerate(read.names):
            pairs = zip(best.indices[row, :topk].tolist(), best.values[row].tolist(), strict=False)
            top = tuple((self.classes[index], value) for index, value in pairs)
            records.append(
                Prediction(
                    name,
                    *top[0],
                    top,
                    bool(judgement.none_of_these[row]),
                    self.classes[int(judgement.nearest[row])],
                    float(judgement.similarity[row]),
                )
            )
        return Predictions(tuple(records), read.failures)

    def embed(self, images: Sequence[Item], progress: Progress = no_progress) -> Embeddings:
        """Return the common and style vectors of each image.

        Methods without fields have the encoder's features for common, minus their mean over the
        training images and at unit length, and no style.
        """
        read = self._reader.read(images, progress)
        common, style = (part.float().numpy() for part in self.fields(read.features))
        return Embeddings(read.names, common, style, read.failures)

    def neighbours(self, image: Item, k: int = 10) -> list[Neighbour]:
        """Return the k training images most similar to an image."""
        common, _ = self.fields(self.features([image]))
        similarities = self._gallery.vectors.double() @ common[0]
        order = similarities.sort(descending=True, stable=True)
        return [
            Neighbour(
                self.facts.images[index], self.classes[int(self._gallery.labels[index])], value
            )
            for index, value in zip(order.indices[:k].tolist(), order.values.tolist(), strict=False)
        ]

    def add_class(self, name: str, images: Sequence[Item]) -> tuple[Failure, ...]:
        """Teach the model a class by the mean of some of its images, without training.

        From then on predictions know the class, and its images can be neighbours; `save` keeps
        it. The ratios between the probabilities of the trained classes stay as they were. How much
        an added class takes from them is decided by the distances to class means, with a sharpness
        found on the validation images; `judge.py` has the formula. Five images or more are
        advisable: with a single one the class's spread is taken to be the usual one.

        Returns:
            The images that could not be read; the others were used.
        """
        if not name or name in self.classes:
            raise UserError(f"the name of a new class is {name!r}: choose one that is not taken")
        read = self._reader.read(images)
        if not read.names:
            reasons = "; ".join(failure.reason for failure in read.failures[:3])
            raise UserError(f"no image of {name!r} can be used. {reasons}".rstrip())
        vectors, _ = self.fields(read.features)
        labels = torch.full((len(read.names),), len(self.classes))
        self._judge = self._judge.with_class(vectors)
        self._gallery = Gallery(
            torch.cat([self._gallery.vectors, vectors.float()]),
            torch.cat([self._gallery.labels, labels]),
        )
        self.facts = self.facts.model_copy(
            update={
                "classes": (*self.classes, name),
                "images": (*self.facts.images, *read.names),
            }
        )
        return read.failures

    def features(self, images: Sequence[Item], progress: Progress = no_progress) -> Tensor:
        """Return the encoder's features (n, F) of images that all have to be readable."""
        read = self._reader.read(images, progress)
        if read.failures:
            raise UserError("\n".join(failure.reason for failure in read.failures))
        return read.features

    def fields(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the common and style vectors (float64) of features (n, F), as `embed` does."""
        return fields_of(self._read_out, self._judge, features)

    def judge(self, features: Tensor) -> Decision:
        """Return probabilities and the rest for features (n, F), as `predict` does."""
        return judged(self._read_out, self._judge, features)

    def graph(self) -> Graph:
        """Return the whole model, from pixels to answers, as one module for export."""
        return Graph(self.facts, self._reader.encoder, self._read_out.head, self._judge)

    def save(
        self,
        folder: str | Path,
        metrics: Mapping[str, float] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Write the model's folder: tensors, facts, hashes and a model card.

        Args:
            folder: made if needed; a model that is there is replaced.
            metrics: how well it did on the test images, or on validation if there are none, for
                the card.
            counts: how many images there were, by "train", "val", "test".
        """
        updates: dict[str, object] = {}
        if metrics is not None:
            updates["metrics"] = {k: v for k, v in metrics.items() if math.isfinite(v)}
        if counts is not None:
            updates["counts"] = dict(counts)
        self.facts = self.facts.model_copy(update=updates)
        write_model(Path(folder), self.facts, self._tensors(), write_card(self.facts))

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"encoder/{k}": v for k, v in self._reader.encoder.state_dict().items()}
        if self._read_out.head is not None:
            # The head came in float32: this loses nothing.
            head = self._read_out.head.state_dict()
            tensors |= {f"head/{k}": v.float() for k, v in head.items()}
        judge = self._judge
        return tensors | {
            "classifier/weight": judge.classifier.weight,
            "classifier/bias": judge.classifier.bias,
            "classes/centre": judge.centre,
            "classes/means": judge.means,
            "classes/tightness": judge.tightness,
            "gallery/vectors": self._gallery.vectors,
            "gallery/labels": self._gallery.labels,
        }
