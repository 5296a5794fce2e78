"""Export a model as one ONNX file, which is written only if it agrees with the model.

The file expects resized and cropped pixels, as bytes; normalisation, classifier, calibration and
rejection are part of it. Decoding and resizing are not, because Pillow and ONNX resize differently.
Programs use `data.image_io` and `data.crop`, which need no torch, as `examples/onnx_predict.py`
does, and the comparison with the model runs through the same functions.
"""

import copy
import importlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scs_supcon.data.crop import CentreCrop
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.load import load_images
from scs_supcon.data.remote import recorded_source
from scs_supcon.data.transforms import centre_crop
from scs_supcon.errors import UserError
from scs_supcon.inference.gallery_file import gallery_digest
from scs_supcon.inference.images import ImageLike, NamedImage, list_images
from scs_supcon.inference.model import Images, Model, no_progress
from scs_supcon.inference.onnx_runtime import import_onnxruntime
from scs_supcon.io.atomic import write_bytes
from scs_supcon.io.records import csv_rows
from scs_supcon.io.values import Value, ValueTree
from scs_supcon.progress import ProgressCallback

FORMAT_VERSION = 2
KEY = "scs_supcon"  # of the metadata
TOLERANCE = 1e-3  # of probabilities and similarities
MAX_IMAGES = 256  # compared
BATCH = 32
OUTPUTS = {
    "probabilities": "calibrated probability of each class",
    "unknown": "whether the similarity to every class is below its threshold",
    "nearest": "class with the largest margin over its threshold",
    "similarity": "mean similarity to the images of `nearest`",
    "common": "common field, at unit length",
    "style": "style field, at unit length",
    "similarities": "mean similarity to the images of each class, to compare with thresholds",
}


class Graph(nn.Module):
    """A whole model in float32: pixels (n, size, size, 3), bytes, to the tensors of `outputs`."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        data = model.info.recipe.data
        self.encoder = _fresh_copy(model.encoder, data.image_size)
        self.classifier = copy.deepcopy(model.classifier).float()
        for name, values in (("mean", data.mean), ("std", data.std)):
            scaled = 255 * torch.tensor(values, dtype=torch.float64).view(3, 1, 1)
            self.register_buffer(name, scaled.float())
        self.outputs = output_names(model)
        self.eval().requires_grad_(False)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        views = (pixels.permute(0, 3, 1, 2).float() - self.mean) / self.std
        decision, common, style = self.classifier(self.encoder(views))
        outputs = (
            decision.probabilities,
            decision.unknown,
            decision.nearest,
            decision.similarity,
            common,
        )
        similarities = common @ self.classifier.rule.means.T
        return (*outputs, *([style] if "style" in self.outputs else []), similarities)


def output_names(model: Model) -> tuple[str, ...]:
    """Return the names of the outputs; only methods with fields have a style."""
    has_style = model.classifier.probe_inputs.probe_input == "common"
    return tuple(name for name in OUTPUTS if name != "style" or has_style)


@dataclass(frozen=True)
class Parity:
    """How well a file agrees with its model.

    Attributes:
        images: number of images compared.
        probability: largest difference of a probability.
        similarity: largest difference of a similarity.
        embedding: largest difference of a component of an embedding.
        same_label: share of images with the same most probable class.
        same_rejection: share of images that both reject or both accept.
    """

    images: int
    probability: float
    similarity: float
    embedding: float
    same_label: float
    same_rejection: float

    @property
    def agrees(self) -> bool:
        """Whether probabilities and similarities differ by at most the tolerance."""
        # Compared one by one, because max() of a number and NaN may be the number.
        return self.probability <= TOLERANCE and self.similarity <= TOLERANCE

    def __str__(self) -> str:
        return (
            f"compared with torch on {self.images} images: largest difference of a probability "
            f"{self.probability:.1e}, of a similarity {self.similarity:.1e}; "
            f"same class {self.same_label:.1%}, same rejection {self.same_rejection:.1%}"
        )


def export_onnx(
    model: Model,
    file: Path,
    images: Images,
    progress: ProgressCallback = no_progress,
) -> Parity:
    """Write a model, including added classes, as one ONNX file.

    Args:
        model: the model to export; `model.with_rejection(…)` changes the thresholds in the file.
        file: the file to write.
        images: images on which the file must agree with the model.
        progress: called with (done, total); each image counts twice.

    Raises:
        UserError: the encoder cannot be exported, the results differ, or the file cannot be
            written; then no file is written.
    """
    listed = list_images(images)
    if not listed:
        raise UserError("at least one image is needed to compare the file with the model")
    _check_libraries()
    expected = _model_results(model, images, lambda done, total: progress(done, 2 * total))
    exported = trace_model(model)
    session = open_session(exported.SerializeToString())
    crop = centre_crop(model.info.recipe.data)
    parity = _compare(expected, _session_results(session, crop, listed, progress))
    if not parity.agrees:
        raise UserError(
            f"the exported file does not agree with the model: {parity}; the tolerance is "
            f"{TOLERANCE:g}; nothing was written"
        )
    write_bytes(file, serialise(exported, {**file_metadata(model), "parity": asdict(parity)}))
    return parity


def trace_model(model: Model) -> Any:
    """Return a model as an ONNX model for any number of images.

    Raises:
        UserError: the encoder cannot be exported.
    """
    _check_libraries()
    graph = Graph(model)
    size = model.info.recipe.data.image_size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's internals
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                verbose=False,
                input_names=["pixels"],
                output_names=list(graph.outputs),
                dynamic_shapes={"pixels": {0: torch.export.Dim("images")}},
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise UserError(
            f"encoder {model.info.recipe.encoder.name!r} cannot be exported: {reason}"
        ) from error
    assert program is not None
    return program.model_proto


def open_session(content: bytes, threads: int = 0) -> Any:
    """Return a session of onnxruntime for a file; 0 threads: as many as there are cores."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def serialise(exported: Any, metadata: Mapping[str, Value]) -> bytes:
    """Return an ONNX model with metadata as bytes."""
    import onnx

    for node in exported.graph.node:
        node.ClearField("metadata_props")  # where the node comes from, with paths of source files
    onnx.helper.set_model_props(exported, {KEY: json.dumps(metadata, ensure_ascii=False)})
    content: bytes = exported.SerializeToString()
    return content


def file_metadata(model: Model) -> ValueTree:
    """Return the metadata of the file, ready for JSON."""
    info, data = model.info, model.info.recipe.data
    return {
        "format_version": FORMAT_VERSION,
        "created_by": f"scs-supcon {version('scs-supcon')}",
        "input": f"pixels: uint8 (n, {data.image_size}, {data.image_size}, 3), RGB",
        "preprocessing": {
            "exif_rotation": True,
            "background": "white",
            "short_side": math.floor(data.image_size / data.crop_pct),
            "interpolation": data.interpolation,
            "centre_crop": data.image_size,
            "included": {"mean": data.mean, "std": data.std},
        },
        "outputs": {name: OUTPUTS[name] for name in output_names(model)},
        "classes": info.classes,
        "trained_classes": info.trained_classes,
        "thresholds": model.classifier.rule.thresholds.float().tolist(),
        "gallery": gallery_digest(model.gallery.labels.numpy(), model.gallery.vectors.numpy()),
        "rejection": info.rejection.model_dump(),
        "pairs": info.pairs.model_dump(),
        "temperature": info.temperature,
        "encoder": info.recipe.encoder.name,
        "method": info.recipe.method.name,
        "probe_input": info.probe_input,
        "metrics": info.metrics.model_dump(exclude_none=True),
        "weights_licence": info.weights_licence,
    }


def images_of_run(run: Path, model: Model, data: str | None = None) -> list[ImageLike]:
    """Return up to 256 test images of a run, or other images of its data if there are none.

    They are read from `data`; by default, from where they were when it was trained.

    Raises:
        UserError: the data is not available.
    """
    try:
        images = load_images(recorded_source(model.info.recipe.data.source, data))
    except UserError as error:
        raise UserError(
            f"cannot load the images of the run for the comparison ({error}): give other images "
            "with --images"
        ) from error
    indices = _test_indices(run, images)
    subset = indices[:: -(-len(indices) // MAX_IMAGES)]
    if images.paths is None:
        return [images.open(index) for index in subset]
    return [images.paths[index] for index in subset]


def _test_indices(run: Path, images: ImageDataset) -> list[int]:
    """Return the test images of the run, else its validation images, else all images."""
    names_of: dict[str, set[str]] = {"test": set(), "val": set()}
    if (file := run / "splits.csv").is_file():
        for row in csv_rows(file, ("name", "split")):
            names_of.setdefault(row["split"], set()).add(row["name"])
    for split in ("test", "val"):
        indices = [i for i, name in enumerate(images.names) if name in names_of[split]]
        if indices:
            return indices
    return list(range(len(images)))


def _check_libraries() -> None:
    import_onnxruntime()
    for name in ("onnx", "onnxscript"):  # torch needs the last one
        importlib.import_module(name)


def _fresh_copy(encoder: nn.Module, size: int) -> nn.Module:
    """Return a copy on the CPU. Some encoders cache tensors, which are computed again."""
    fresh = copy.deepcopy(encoder).cpu().to(memory_format=torch.contiguous_format)
    fresh.train().eval()
    with torch.no_grad():
        fresh(torch.zeros(1, 3, size, size))
    return fresh


class _Results(NamedTuple):
    """The results to compare, for n images."""

    probabilities: NDArray[np.floating[Any]]
    unknown: NDArray[np.bool_]
    similarity: NDArray[np.floating[Any]]
    embeddings: NDArray[np.floating[Any]]


def _model_results(model: Model, images: Images, progress: ProgressCallback) -> _Results:
    features = model.features(images, progress)
    decision = model.decide(features)
    return _Results(
        decision.probabilities.numpy(),
        decision.unknown.numpy(),
        decision.similarity.numpy(),
        torch.cat(model.fields(features), 1).numpy(),
    )


def _session_results(
    session: Any, crop: CentreCrop, images: Sequence[NamedImage], progress: ProgressCallback
) -> _Results:
    total = len(images)
    names = [output.name for output in session.get_outputs()]
    batches = []
    for start in range(0, total, BATCH):
        chunk = images[start : start + BATCH]
        pixels = np.stack([np.asarray(crop(image.open())) for image in chunk])
        out = dict(zip(names, session.run(None, {"pixels": pixels}), strict=True))
        fields = np.concatenate([out[name] for name in ("common", "style") if name in out], 1)
        batches.append((out["probabilities"], out["unknown"], out["similarity"], fields))
        progress(total + start + len(chunk), 2 * total)
    return _Results(*(np.concatenate(column) for column in zip(*batches, strict=True)))


def _compare(expected: _Results, actual: _Results) -> Parity:
    same_label = expected.probabilities.argmax(1) == actual.probabilities.argmax(1)
    return Parity(
        images=len(expected.similarity),
        probability=_largest_difference(expected.probabilities, actual.probabilities),
        similarity=_largest_difference(expected.similarity, actual.similarity),
        embedding=_largest_difference(expected.embeddings, actual.embeddings),
        same_label=float(np.mean(same_label)),
        same_rejection=float(np.mean(expected.unknown == actual.unknown)),
    )


def _largest_difference(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    return float(np.abs(a - b).max())
