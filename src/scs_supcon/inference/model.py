"""A trained model: images -> predictions, embeddings and neighbours."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from scs_supcon.data.image_io import ImageError
from scs_supcon.data.transforms import eval_view
from scs_supcon.errors import UserError
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import (
    Decision,
    DecisionRule,
    FeatureClassifier,
    FusedField,
    ProbeInputs,
    fit_decision_rule,
    fit_fused_rule,
    fit_pairs,
    in_passes,
    pair_similarities,
)
from scs_supcon.inference.images import ImageLike, NamedImage, list_images
from scs_supcon.inference.neighbours import (
    EXACT_ROWS,
    describe_index,
    exact_nearest,
    read_embeddings,
    stored_index,
)
from scs_supcon.inference.package import (
    ModelInfo,
    ModelMetrics,
    PairRule,
    RejectionRule,
    write_package,
)
from scs_supcon.inference.rejection import margin_quantiles, shift_for_rate
from scs_supcon.inference.types import (
    Embeddings,
    Failure,
    Neighbour,
    Prediction,
    Predictions,
    StoredNeighbour,
    StoredNeighbours,
)
from scs_supcon.nn.encode import encode, for_inference, pass_size
from scs_supcon.nn.encoder import Encoder
from scs_supcon.nn.fold import fold_norms
from scs_supcon.nn.network import ProbeInput
from scs_supcon.nn.timm_models import weights_licence
from scs_supcon.nn.whitening import Whitening
from scs_supcon.progress import ProgressCallback
from scs_supcon.recipe import Recipe

Images = ImageLike | Iterable[ImageLike]
"""One image, or many: see `ImageLike`."""


def no_progress(_done: int, _total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class EmbeddingGallery:
    """Embeddings of the images that can be neighbours.

    Attributes:
        vectors: (n, D) common field.
        labels: (n,)
        style: (n, S) style field; no columns for methods without fields and models of old versions.
    """

    vectors: Tensor
    labels: Tensor
    style: Tensor


class EncodedImages(NamedTuple):
    """Names and features (n, F) of the readable images in their order, and the failures."""

    names: tuple[str, ...]
    features: Tensor
    failures: tuple[Failure, ...]


class Model:
    """A trained classifier of images, from `load` or `Model.from_training`.

    The encoder and everything after it process images in passes of a fixed size, so that the result
    for an image does not depend on the other images, and is the same in training and later.
    """

    def __init__(
        self,
        info: ModelInfo,
        encoder: nn.Module,
        projection: nn.Module | None,
        rule: DecisionRule,
        gallery: EmbeddingGallery,
        whitening: Whitening | None = None,
    ) -> None:
        self.info = info
        self.encoder = cast("Encoder", for_inference(encoder))
        """Views -> features, in evaluation mode and channels-last layout."""
        self.classifier = FeatureClassifier(
            ProbeInputs(
                projection, info.probe_input, info.recipe.head, whitening, info.omega or 0.0
            ),
            rule,
        )
        """Features -> decision."""
        self.gallery = gallery
        """Embeddings of the training images, in the order of `info.image_names`."""
        self._view = eval_view(info.recipe.data)

    @cached_property
    def folded_encoder(self) -> nn.Module:
        """The encoder with batch normalisation folded into convolutions, which `encode` runs."""
        return fold_norms(self.encoder)

    @classmethod
    def from_training(
        cls,
        *,
        recipe: Recipe,
        classes: Sequence[str],
        encoder: nn.Module,
        projection: nn.Module | None,
        probe_input: ProbeInput,
        classifier: LinearClassifier,
        train: tuple[Tensor, Tensor],
        val: tuple[Tensor, Tensor],
        train_names: Sequence[str],
        learned_pairs: tuple[float, float] | None,
        fused: FusedField | None = None,
    ) -> "Model":
        """Build a model from the results of training.

        Args:
            recipe: recipe of the run.
            classes: names of the classes, in the order of the labels.
            encoder: trained encoder.
            projection: trained projection head; not needed if the probe input is "features".
            probe_input: input of the classifier.
            classifier: classifier of stage 2.
            train: features (n, F) of the evaluation view, and labels, of the training images.
            val: the same for the validation images.
            train_names: names of the training images.
            learned_pairs: t and b that the method learned for pairs of unit vectors, if any.
            fused: the fusion of the common field with the whitened features, if any.
        """
        whitening, omega = (None, 0.0) if fused is None else (fused.whitening, fused.omega)
        probe_inputs = ProbeInputs(projection, probe_input, recipe.head, whitening, omega)
        train_inputs, train_style = in_passes(probe_inputs, train[0])
        val_inputs, _ = in_passes(probe_inputs, val[0])
        labels, val_labels = train[1].cpu(), val[1].cpu()
        if fused is None:
            rule = fit_decision_rule(
                classifier,
                train=(train_inputs, labels),
                val=(val_inputs, val_labels),
                probe_input=probe_input,
            )
            val_pairs = pair_similarities(rule.common(val_inputs), val_labels)
            pairs = learned_pairs or fit_pairs(*val_pairs)
        else:
            rule = fit_fused_rule(
                classifier,
                train=(train_inputs, labels),
                fused=fused,
            )
            pairs = fused.t, fused.b
        held_out = rule.similarities(val_inputs) if fused is None else fused.similarities
        info = ModelInfo(
            classes=tuple(classes),
            trained_classes=len(classes),
            probe_input=probe_input,
            temperature=classifier.temperature,
            prototype_scale=rule.prototype_scale,
            rejection=RejectionRule(
                rule="out_of_fold" if fused is not None and fused.out_of_fold else "quantile",
                threshold=rule.threshold,
                val_rejected=float(rule(val_inputs).unknown.double().mean()),
                margins=margin_quantiles(held_out, rule.thresholds),
            ),
            pairs=PairRule(
                t=pairs[0], b=pairs[1], learned=fused is None and learned_pairs is not None
            ),
            omega=None if fused is None else fused.omega,
            recipe=recipe,
            image_names=tuple(train_names),
            weights_licence=_licence(recipe),
        )
        gallery = EmbeddingGallery(rule.common(train_inputs).float(), labels, train_style.float())
        return cls(info, encoder, projection, rule, gallery, whitening)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes; added ones come last."""
        return self.info.classes

    def with_rejection(
        self, *, false_rejection: float | None = None, threshold: float | None = None
    ) -> "Model":
        """Return the same model with another threshold for "unknown"; see `predict`.

        Without arguments the model keeps the thresholds that it was trained with.
        """
        if false_rejection is None and threshold is None:
            return self
        if false_rejection is not None and threshold is not None:
            raise UserError("give either a false-rejection rate or a threshold, not both")
        rule, rejection = self.classifier.rule, self.info.rejection
        changes: dict[str, object] = {"rule": "given", "margins": ()}
        if threshold is not None:
            rule = rule.with_threshold(threshold)
        elif false_rejection is not None:
            shift = shift_for_rate(rejection.margins, false_rejection)
            rule = rule.shifted(shift)
            changes = {"margins": tuple(margin - shift for margin in rejection.margins)}
        changes |= {"threshold": rule.threshold, "val_rejected": None}
        rejection = rejection.model_copy(update=changes)
        model = copy.copy(self)
        model.classifier = FeatureClassifier(self.classifier.probe_inputs, rule)
        model.info = self.info.model_copy(update={"rejection": rejection})
        return model

    def predict(
        self,
        images: Images,
        topk: int = 5,
        progress: ProgressCallback = no_progress,
        *,
        false_rejection: float | None = None,
        threshold: float | None = None,
    ) -> Predictions:
        """Return predictions for images, and failures for unreadable images.

        Args:
            images: a path, a folder, a pattern such as "photos/*.jpg", a Pillow image, an array
                (height, width, 3), or a list of these.
            topk: number of classes in `Prediction.top`.
            progress: called with (images done, total).
            false_rejection: share of the images of known classes that may be rejected as unknown,
                such as 0.01 to reject less, or 0.2 to reject more. Default: 0.05.
            threshold: similarity, from −1 to 1, below which images are rejected instead.
        """
        if topk < 1:
            raise UserError(f"topk must be at least 1, got {topk}")
        model = self.with_rejection(false_rejection=false_rejection, threshold=threshold)
        encoded = self.encode(images, progress)
        return model.predictions(encoded, topk)

    def predictions(self, encoded: "EncodedImages", topk: int = 5) -> Predictions:
        """Return the predictions for images that are already encoded."""
        decision = self.decide(encoded.features)
        needed = self.classifier.rule.thresholds[decision.nearest]
        best = decision.probabilities.sort(dim=1, descending=True, stable=True)
        predictions = []
        for row, name in enumerate(encoded.names):
            pairs = zip(best.indices[row, :topk].tolist(), best.values[row].tolist(), strict=False)
            top = tuple((self.classes[index], value) for index, value in pairs)
            predictions.append(
                Prediction(
                    name=name,
                    label=top[0][0],
                    probability=top[0][1],
                    top=top,
                    unknown=bool(decision.unknown[row]),
                    nearest=self.classes[int(decision.nearest[row])],
                    similarity=float(decision.similarity[row]),
                    threshold=float(needed[row]),
                )
            )
        return Predictions(tuple(predictions), encoded.failures)

    def embed(self, images: Images, progress: ProgressCallback = no_progress) -> Embeddings:
        """Return the common and style vectors of images.

        For methods without fields, common is the probe input at unit length (features minus their
        mean over the training images), and style has no columns.
        """
        encoded = self.encode(images, progress)
        common, style = (field.float().numpy() for field in self.fields(encoded.features))
        return Embeddings(encoded.names, common, style, encoded.failures)

    def neighbours(
        self, image: ImageLike, k: int = 10, *, field: Literal["common", "style"] = "common"
    ) -> list[Neighbour]:
        """Return the k training images that are most similar to an image.

        Args:
            image: a path, a Pillow image or an array.
            k: number of neighbours.
            field: "common" compares what defines the class; "style" what varies within it.
        """
        return self.search(image, k=k, field=field)[0]

    def search(
        self,
        image: ImageLike,
        images: Images | None = None,
        k: int = 10,
        *,
        field: Literal["common", "style"] = "common",
        progress: ProgressCallback = no_progress,
    ) -> tuple[list[Neighbour], tuple[Failure, ...]]:
        """Return the k images that are most similar to an image, and those that cannot be read.

        Args:
            image: the image to compare with.
            images: where to search; the label of a result is then the predicted class. Default: the
                training images, with their labels.
            k: number of images to return.
            field: as for `neighbours`.
            progress: called with (images done, total).
        """
        if field not in ("common", "style"):
            raise UserError(f"field must be 'common' or 'style', got {field!r}")
        column = 0 if field == "common" else 1
        features = self.features(image)
        if len(features) != 1:
            raise UserError(f"neighbours need exactly one image, got {len(features)}")
        if images is None:
            vectors = self.gallery.vectors if field == "common" else self.gallery.style
            names, labels = self.info.image_names, self.gallery.labels
            failures: tuple[Failure, ...] = ()
        else:
            names, rows, failures = self.encode(images, progress)
            vectors = self.fields(rows)[column]
            labels = self.decide(rows).probabilities.argmax(1)
        if field == "style" and not vectors.shape[1]:
            raise UserError(
                "this model stores no style vectors: its method has no style field, or an older "
                "version trained it; train it again to compare styles"
            )
        (rows,), (similarities,) = exact_nearest(vectors, self.fields(features)[column], k)
        similar = [
            Neighbour(names[row], self.classes[int(labels[row])], float(similarity))
            for row, similarity in zip(rows, similarities, strict=True)
        ]
        return similar, failures

    def search_vectors(
        self,
        image: ImageLike,
        file: str | Path,
        k: int = 10,
        *,
        field: Literal["common", "style"] = "common",
        approximate: bool | None = None,
    ) -> StoredNeighbours:
        """Return the k most similar images of a file that `scs embed` has written.

        Args:
            image: the image to compare with.
            file: Parquet file with the embeddings of this model.
            k: number of images to return.
            field: as for `neighbours`.
            approximate: use an index, which is built once and stored beside the file; it needs
                usearch. Default: with more than a million vectors.
        """
        features = self.features(image)
        if len(features) != 1:
            raise UserError(f"search needs exactly one image, got {len(features)}")
        query = self.fields(features)[0 if field == "common" else 1]
        stored = read_embeddings(Path(file), field)
        if stored.vectors.shape[1] != query.shape[1]:
            raise UserError(
                f"{file} has vectors of length {stored.vectors.shape[1]}, this model of length "
                f"{query.shape[1]}: write it again with scs embed and this model"
            )
        note = ""
        if approximate or (approximate is None and len(stored.names) > EXACT_ROWS):
            index = stored_index(Path(file), field, stored.vectors)
            (rows,), (similarities,) = index.nearest(query, k)
            note = describe_index(index)
        else:
            (rows,), (similarities,) = exact_nearest(stored.vectors, query, k)
        similar = [
            StoredNeighbour(stored.names[row], float(similarity))
            for row, similarity in zip(rows, similarities, strict=True)
        ]
        return StoredNeighbours(tuple(similar), note)

    def same(self, first: ImageLike, second: ImageLike) -> float:
        """Return the probability that two images are of one class: σ(t r − b).

        r is the similarity of the two images in the common field. The images may be of classes
        that the model was not trained on.
        """
        common, _ = self.fields(self.features([first, second]))
        pairs = self.info.pairs
        return float(torch.sigmoid(pairs.t * (common[0] @ common[1]) - pairs.b))

    def add_class(self, name: str, images: Images) -> tuple[Failure, ...]:
        """Add a class, represented by the mean of example images, without training.

        The probabilities of the trained classes keep their ratios. The probability of the added
        class depends on the distances to the class means; see `DecisionRule`. Use five or more
        images: with a single image the spread of the class is assumed to be average. `save` also
        stores added classes.

        Args:
            name: of the new class.
            images: a folder of images, or anything that `predict` accepts.

        Returns:
            The images that could not be read; the others were used.
        """
        if not name or name in self.classes:
            raise UserError(f"the new class needs a name that is not in use, got {name!r}")
        encoded = self.encode(images)
        if not encoded.names:
            reasons = "; ".join(failure.reason for failure in encoded.failures[:3])
            raise UserError(f"no image of {name!r} can be used. {reasons}".rstrip())
        vectors, style = self.fields(encoded.features)
        labels = torch.full((len(encoded.names),), len(self.classes))
        self.classifier.rule = self.classifier.rule.with_class(vectors)
        self.gallery = EmbeddingGallery(
            torch.cat([self.gallery.vectors, vectors.float()]),
            torch.cat([self.gallery.labels, labels]),
            torch.cat([self.gallery.style, style[:, : self.gallery.style.shape[1]].float()]),
        )
        self.info = self.info.model_copy(
            update={
                "classes": (*self.classes, name),
                "image_names": (*self.info.image_names, *encoded.names),
            }
        )
        return encoded.failures

    def encode(self, images: Images, progress: ProgressCallback = no_progress) -> EncodedImages:
        """Open images and return the encoder's features of their evaluation views.

        On a CPU each pass of the encoder uses one thread, so that the last bits do not depend on
        the number of threads; passes run in parallel instead.
        """
        listed = list_images(images)
        size = pass_size(self.folded_encoder, self.info.recipe.data.image_size**2)
        chunks = [listed[start : start + size] for start in range(0, len(listed), size)]
        results: list[EncodedImages] = []
        done = 0
        with _single_threaded_pool() as pool:
            for chunk, result in zip(chunks, pool.map(self._encode_chunk, chunks), strict=True):
                results.append(result)
                done += len(chunk)
                progress(done, len(listed))
        return EncodedImages(
            tuple(name for result in results for name in result.names),
            torch.cat([self._no_features(), *(result.features for result in results)]),
            tuple(failure for result in results for failure in result.failures),
        )

    def features(self, images: Images, progress: ProgressCallback = no_progress) -> Tensor:
        """Return the encoder's features (n, F) of images, all of which must be readable."""
        encoded = self.encode(images, progress)
        if encoded.failures:
            raise UserError("\n".join(failure.reason for failure in encoded.failures))
        return encoded.features

    def fields(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the common and style vectors (float64) of features (n, F)."""
        return self.classifier.fields(features)

    def decide(self, features: Tensor) -> Decision:
        """Return the decisions for features (n, F)."""
        return self.classifier.decide(features)

    def save(
        self,
        directory: str | Path,
        metrics: ModelMetrics | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Write the model's directory: tensors, information, checksums and a model card.

        Args:
            directory: created if needed; an existing model is replaced.
            metrics: results for the model card.
            counts: number of images in the "train", "val" and "test" split.
        """
        updates: dict[str, object] = {}
        if metrics is not None:
            updates["metrics"] = metrics
        if counts is not None:
            updates["counts"] = dict(counts)
        self.info = self.info.model_copy(update=updates)
        write_package(Path(directory), self.info, self._tensors())

    def _encode_chunk(self, chunk: list[NamedImage]) -> EncodedImages:
        names, views, failures = [], [], []
        for image in chunk:
            try:
                views.append(self._view(image.open()))
                names.append(image.name)
            except ImageError as error:
                failures.append(Failure(image.name, str(error)))
        features = self._no_features()
        if views:
            features = torch.from_numpy(encode(self.folded_encoder, torch.stack(views)))
        return EncodedImages(tuple(names), features, tuple(failures))

    def _no_features(self) -> Tensor:
        return torch.empty(0, self.encoder.num_features)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"encoder/{name}": value for name, value in self.encoder.state_dict().items()}
        projection = self.classifier.probe_inputs.projection
        if projection is not None:
            # Nothing is lost, because the projection was trained in float32.
            state = projection.state_dict()
            tensors |= {f"head/{name}": value.float() for name, value in state.items()}
        whitening = self.classifier.probe_inputs.whitening
        if whitening is not None:
            tensors |= {
                f"whitening/{name}": value for name, value in whitening.state_dict().items()
            }
        rule = self.classifier.rule
        return tensors | {
            "classifier/weight": rule.weight,
            "classifier/bias": rule.bias,
            "classes/centre": rule.centre,
            "classes/means": rule.means,
            "classes/tightness": rule.within_class_similarity,
            "classes/thresholds": rule.thresholds,
            "gallery/vectors": self.gallery.vectors,
            "gallery/labels": self.gallery.labels,
            "gallery/style": self.gallery.style,
        }


def _licence(recipe: Recipe) -> str:
    if recipe.encoder.weights == "scratch":
        return "none, it started from random weights"
    if recipe.encoder.weights == "pretrained":
        return weights_licence(recipe.encoder.name)
    return "that of the weights file it started from, " + recipe.encoder.weights


@contextmanager
def _single_threaded_pool() -> Iterator[ThreadPoolExecutor]:
    """Yield a pool with as many workers as torch has threads, each computing with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)  # does not start queued work after an interrupt
        torch.set_num_threads(threads)
