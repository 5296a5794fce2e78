"""Export a model with 8-bit integers: about a quarter of the size, and quicker on most processors.

The weights are rounded per channel; the ranges of the activations are those of training images.
Similarities, calibration and rejection stay in floating point.
Rounding changes the results a little, so both versions are measured on the same labelled images,
which were not used for the ranges.
"""

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scs_supcon.data.crop import CentreCrop
from scs_supcon.data.load import load_images
from scs_supcon.data.remote import recorded_source
from scs_supcon.data.transforms import centre_crop
from scs_supcon.errors import UserError
from scs_supcon.inference.images import ImageLike, list_images
from scs_supcon.inference.model import Model
from scs_supcon.inference.onnx import BATCH, file_metadata, open_session, serialise, trace_model
from scs_supcon.inference.onnx_runtime import import_onnxruntime
from scs_supcon.io.atomic import write_bytes
from scs_supcon.io.records import csv_rows
from scs_supcon.progress import ProgressCallback

CALIBRATION_IMAGES = 128
MAX_MEASURED = 512
TIMED = 30  # predictions of one image with each file
HEAD = ("Gemm", "MatMul", "Relu")  # operators of the head, which also computes unit vectors
SCOPES = "pkg.torch.onnx.name_scopes"  # key of a node's metadata


@dataclass(frozen=True)
class LabelledImages:
    """Images of a split, and their classes by number."""

    split: str
    images: Sequence[ImageLike]
    labels: Sequence[int]


@dataclass(frozen=True)
class FileMeasurement:
    """A file: accuracy, size, and the time of a prediction of one image on one thread."""

    accuracy: float
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Quantisation:
    """The same model in floating point and in 8 bits.

    Attributes:
        calibration_images: number of training images that gave the ranges.
        images: number of images of the measurement.
        split: of these images.
        float32: the model in floating point.
        int8: the model in 8 bits.
        same_label: share of images with the same most probable class.
        same_rejection: share of images that both reject or both accept.
        worse: number of images that are classified correctly in floating point only.
        better: number of images that are classified correctly in 8 bits only.
    """

    calibration_images: int
    images: int
    split: str
    float32: FileMeasurement
    int8: FileMeasurement
    same_label: float
    same_rejection: float
    worse: int
    better: int

    def __str__(self) -> str:
        lines = [f"{'':<10}{'accuracy':>9}{'size':>10}{'one image':>12}"]
        for name, file in (("float32", self.float32), ("int8", self.int8)):
            size, seconds = f"{file.bytes / 1e6:.1f} MB", f"{1000 * file.seconds:.1f} ms"
            lines.append(f"{name:<10}{file.accuracy:>9.1%}{size:>10}{seconds:>12}")
        lines.append(
            f"measured on {self.images} {self.split} images with one thread; same class "
            f"{self.same_label:.1%}, same rejection {self.same_rejection:.1%}"
        )
        if self.worse or self.better:
            from scipy.stats import binomtest

            # The exact interval that belongs to the sign test on the images that differ.
            differing, points = self.worse + self.better, 100 / self.images
            shares = (self.worse / differing, *binomtest(self.worse, differing).proportion_ci())
            lost, low, high = (points * (2 * share - 1) * differing for share in shares)
            lines.append(
                f"8 bits make {self.worse} of {self.images} images wrong and {self.better} right: "
                f"{lost:.1f} points of accuracy lost (95% interval {low:.1f} to {high:.1f})"
            )
            if low > 0:
                lines.append("caution   8 bits cost accuracy: export without --int8")
        return "\n".join(lines)


def export_int8(
    model: Model,
    file: Path,
    calibration: Sequence[ImageLike],
    measured: LabelledImages,
    progress: ProgressCallback,
) -> Quantisation:
    """Write a model as an ONNX file with 8-bit integers, and measure it beside floating point.

    Args:
        model: the model to export.
        file: the file to write.
        calibration: training images, for the ranges of the activations.
        measured: other images with labels.
        progress: called with (done, total) images.
    """
    crop = centre_crop(model.info.recipe.data)
    total = len(calibration) + 2 * len(measured.images)
    exported = trace_model(model)
    ranges = _pixels(crop, calibration)
    quantised = _quantise(exported, ranges)
    progress(len(calibration), total)
    pixels, labels = _pixels(crop, measured.images), np.array(measured.labels)
    metadata = file_metadata(model)
    contents = [serialise(version, metadata) for version in (exported, quantised)]
    sessions = [open_session(content, threads=1) for content in contents]
    outputs = []
    for number, session in enumerate(sessions):
        outputs.append(_decisions(session, pixels))
        progress(len(calibration) + (number + 1) * len(labels), total)
    float32, int8 = (
        FileMeasurement(float(np.mean(predicted == labels)), len(content), seconds)
        for content, (predicted, _), seconds in zip(
            contents, outputs, _seconds(sessions, pixels), strict=True
        )
    )
    quantisation = Quantisation(
        calibration_images=len(calibration),
        images=len(labels),
        split=measured.split,
        float32=float32,
        int8=int8,
        same_label=float(np.mean(outputs[0][0] == outputs[1][0])),
        same_rejection=float(np.mean(outputs[0][1] == outputs[1][1])),
        worse=int(np.sum((outputs[0][0] == labels) & (outputs[1][0] != labels))),
        better=int(np.sum((outputs[0][0] != labels) & (outputs[1][0] == labels))),
    )
    metadata |= {"quantisation": asdict(quantisation)}
    write_bytes(file, serialise(quantised, metadata))
    return quantisation


def images_for_quantisation(
    run: Path, model: Model, data: str | None = None
) -> tuple[list[ImageLike], LabelledImages]:
    """Return training images, and validation images of a run, else its test images.

    They are read from `data`; by default, from where they were when it was trained.

    Raises:
        UserError: the data is not available, or there are no such images.
    """
    try:
        images = load_images(recorded_source(model.info.recipe.data.source, data))
    except UserError as error:
        raise UserError(f"--int8 needs the images of the run: {error}") from error
    splits = run / "splits.csv"
    if not splits.is_file():
        raise UserError(f"--int8 needs {splits}, which says how the images were used")
    used_as = {row["name"]: row["split"] for row in csv_rows(splits, ("name", "split"))}
    indices: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for index, name in enumerate(images.names):
        if (split := used_as.get(name, "")) in indices:
            indices[split].append(index)
    split = "val" if indices["val"] else "test"
    if not indices["train"] or not indices[split]:
        raise UserError(f"{splits} has no training images, or no others to measure with")

    def chosen(name: str, count: int) -> list[int]:
        rows = np.linspace(0, len(indices[name]) - 1, min(count, len(indices[name])))
        return [indices[name][int(row)] for row in rows]

    def opened(rows: Sequence[int]) -> list[ImageLike]:
        return [images.open(i) if images.paths is None else images.paths[i] for i in rows]

    rows = chosen(split, MAX_MEASURED)
    labels = [model.classes.index(images.classes[images.labels[i]]) for i in rows]
    names = {"val": "validation", "test": "test"}
    measured = LabelledImages(names[split], opened(rows), labels)
    return opened(chosen("train", CALIBRATION_IMAGES)), measured


def _pixels(crop: CentreCrop, images: Sequence[ImageLike]) -> NDArray[np.uint8]:
    return np.stack([np.asarray(crop(image.open())) for image in list_images(images)])


def _quantise(exported: Any, pixels: NDArray[np.uint8]) -> Any:
    """Return the model with 8-bit weights and activations."""
    import onnx

    import_onnxruntime()
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rows: Iterator[NDArray[np.uint8]] = iter(pixels)

        def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
            row = next(self._rows, None)
            return None if row is None else {"pixels": row[None]}

    nodes = [node.name for node in exported.graph.node if _is_quantised(node)]
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # advice for users of its own command line
    try:
        with tempfile.TemporaryDirectory() as folder:
            before, after = Path(folder) / "float32.onnx", Path(folder) / "int8.onnx"
            before.write_bytes(exported.SerializeToString())  # a model in memory would be changed
            quantization.quantize_static(
                before,
                after,
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                nodes_to_quantize=nodes,
            )
            return onnx.load(after)
    finally:
        logging.disable(disabled)


def _is_quantised(node: Any) -> bool:
    """Return whether a node belongs to the encoder or to the layers of the head.

    Activation functions belong to them: the range of their result is smaller than that of their
    input, so that 8 bits are enough.
    """
    scopes = "".join(entry.value for entry in node.metadata_props if entry.key == SCOPES)
    in_head = "'classifier.probe_inputs'" in scopes and node.op_type in HEAD
    return in_head or "'encoder'" in scopes


def _decisions(
    session: Any, pixels: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the most probable classes, and whether the images are rejected."""
    outputs = ["probabilities", "unknown"]
    results = [
        session.run(outputs, {"pixels": pixels[start : start + BATCH]})
        for start in range(0, len(pixels), BATCH)
    ]
    probabilities, unknown = (np.concatenate(column) for column in zip(*results, strict=True))
    return probabilities.argmax(1), unknown


def _seconds(sessions: Sequence[Any], pixels: NDArray[np.uint8]) -> list[float]:
    """Return the median seconds of a prediction of one image, measured in turns."""
    seconds: list[list[float]] = [[] for _ in sessions]
    for number in range(TIMED):
        row = pixels[number % len(pixels)][None]
        for session, times in zip(sessions, seconds, strict=True):
            start = time.perf_counter()
            session.run(None, {"pixels": row})
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]
