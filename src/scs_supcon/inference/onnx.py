"""One ONNX file for a model, written only if it answers as the model does.

The file takes pixels that were resized and cropped, as bytes; normalisation, classifier,
calibration and the "none of these" rule are inside. Resizing stays outside, because Pillow's is not
ONNX's: the facts in the file's metadata say how. `examples/onnx_predict.py` does it.
"""

import csv
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.load import load_images
from scs_supcon.data.transforms import eval_view
from scs_supcon.errors import UserError
from scs_supcon.inference.graph import Graph
from scs_supcon.inference.model import Model
from scs_supcon.inference.reader import Item, Progress, no_progress, opened
from scs_supcon.io.atomic import write_bytes

FORMAT_VERSION = 1
KEY = "scs_supcon"  # of the facts in the file's metadata
TOLERANCE = 1e-3  # in probabilities and similarities: the last digit that people look at
ENOUGH = 256  # images to compare by
BATCH = 32
EXPLAINED = {
    "probabilities": "of each class, calibrated",
    "none_of_these": "whether the image is unlike the members of every class",
    "nearest": "class whose members it is most like, measured against what that class needs",
    "similarity": "mean similarity to the members of `nearest`",
    "common": "embedding by what classmates share, at unit length",
    "style": "embedding by what they do not share, at unit length",
}


@dataclass(frozen=True)
class Parity:
    """How well a file agrees with its model, on some images.

    Attributes:
        images: how many were compared.
        probability: largest difference of a probability.
        similarity: largest difference of a similarity.
        embedding: largest difference of a component of an embedding.
        same_label: share of images with the same most probable class.
        same_refusal: share of images on which both say "none of these", or both do not.
    """

    images: int
    probability: float
    similarity: float
    embedding: float
    same_label: float
    same_refusal: float

    @property
    def agrees(self) -> bool:
        """Whether probabilities and similarities differ by less than the tolerance."""
        # One by one: the larger of a number and NaN may be the number.
        return self.probability <= TOLERANCE and self.similarity <= TOLERANCE

    def __str__(self) -> str:
        return (
            f"ONNX agrees with torch on {self.images} images: largest difference of a "
            f"probability {self.probability:.1e}, of a similarity {self.similarity:.1e}; "
            f"same class {self.same_label:.1%}, same refusal {self.same_refusal:.1%}"
        )


def export_onnx(
    model: Model, file: Path, images: Sequence[Item], progress: Progress = no_progress
) -> Parity:
    """Write a model, with the classes that were added to it, as one ONNX file.

    Args:
        model: the model.
        file: where to write.
        images: on which the file has to answer as the model does.
        progress: called with (done, total); each image is judged twice.

    Raises:
        UserError: the encoder cannot be exported, the answers differ, or the file cannot be
            written; then there is no new file.
    """
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401 - torch needs it, and would say so less plainly

    if not images:
        raise UserError("give some images to compare the file with the model by")
    ours = _of_model(model, images, lambda done, total: progress(done, 2 * total))
    graph = model.graph()
    made = _traced(graph, model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    theirs = _of_session(model, session, images, progress)
    parity = _compared(ours, theirs)
    if not parity.agrees:
        raise UserError(
            f"the exported file does not answer as the model does: {parity}, more than "
            f"{TOLERANCE:g}; nothing was written"
        )
    facts = json.dumps({**facts_of(model, graph), "parity": asdict(parity)}, ensure_ascii=False)
    onnx.helper.set_model_props(made, {KEY: facts})
    write_bytes(file, made.SerializeToString())
    return parity


def facts_of(model: Model, graph: Graph) -> dict[str, Any]:
    """Return all that a user of the file has to know, ready for JSON."""
    facts, data = model.facts, model.facts.recipe.data
    return {
        "format_version": FORMAT_VERSION,
        "made_by": f"scs-supcon {version('scs-supcon')}",
        "input": f"pixels: bytes (n, {data.image_size}, {data.image_size}, 3), red green blue",
        "prepare": {
            "upright": True,
            "background": "white",
            "short_side": math.floor(data.image_size / data.crop_pct),
            "interpolation": data.interpolation,
            "centre_crop": data.image_size,
            "inside": {"mean": data.mean, "std": data.std},
        },
        "outputs": {name: EXPLAINED[name] for name in graph.outputs},
        "classes": facts.classes,
        "trained": facts.trained,
        "needed": graph.bars.tolist(),
        "boundary": facts.boundary.model_dump(),
        "temperature": facts.temperature,
        "encoder": facts.recipe.encoder.name,
        "method": facts.recipe.method.name,
        "readout": facts.readout,
        "metrics": facts.metrics,
        "weights_licence": facts.weights_licence,
    }


def own_images(run: Path, model: Model) -> list[Item]:
    """Return up to 256 images that the run was tested on, or else others of its data.

    Raises:
        UserError: the data is not where it was.
    """
    try:
        images = load_images(model.facts.recipe.data.source)
        chosen = _tested(run, images)
    except UserError as error:
        raise UserError(
            f"the run's own images cannot be used to compare by ({error}): give others with "
            "--images"
        ) from error
    few = chosen[:: -(-len(chosen) // ENOUGH)]
    if images.paths is None:
        return [images.open(index) for index in few]
    return [images.paths[index] for index in few]


def _tested(run: Path, images: ImageDataset) -> list[int]:
    """Indices of the images that the run tested on, or validated on; all, if nobody knows."""
    by_split: dict[str, set[str]] = {"test": set(), "val": set()}
    if (file := run / "splits.csv").is_file():
        with file.open(newline="", encoding="utf-8") as rows:
            for row in csv.DictReader(rows):
                by_split.setdefault(row["split"], set()).add(row["name"])
    for split in ("test", "val"):
        found = [at for at, name in enumerate(images.names) if name in by_split[split]]
        if found:
            return found
    return list(range(len(images)))


def _traced(graph: Graph, model: Model) -> Any:
    """The graph as ONNX; any number of images may come at a time."""
    size = model.facts.recipe.data.image_size
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the inner life of the exporter
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
            f"encoder {model.facts.recipe.encoder.name!r} cannot be exported: {reason}"
        ) from error
    assert program is not None
    return program.model_proto


class _Answers(NamedTuple):
    """What is compared, of n images."""

    probabilities: NDArray[np.floating[Any]]
    none_of_these: NDArray[np.bool_]
    similarity: NDArray[np.floating[Any]]
    embeddings: NDArray[np.floating[Any]]


def _of_model(model: Model, images: Sequence[Item], progress: Progress) -> _Answers:
    features = model.features(images, progress)
    judgement = model.judge(features)
    embeddings = torch.cat(model.fields(features), 1)
    return _Answers(
        judgement.probabilities.numpy(),
        judgement.none_of_these.numpy(),
        judgement.similarity.numpy(),
        embeddings.numpy(),
    )


def _of_session(model: Model, session: Any, images: Sequence[Item], progress: Progress) -> _Answers:
    place, total = eval_view(model.facts.recipe.data).place, len(images)
    names = [output.name for output in session.get_outputs()]
    parts = []
    for start in range(0, total, BATCH):
        some = images[start : start + BATCH]
        pixels = np.stack([np.asarray(place(opened(image))) for image in some])
        out = dict(zip(names, session.run(None, {"pixels": pixels}), strict=True))
        fields = np.concatenate([out[name] for name in ("common", "style") if name in out], 1)
        parts.append((out["probabilities"], out["none_of_these"], out["similarity"], fields))
        progress(total + start + len(some), 2 * total)
    return _Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _compared(ours: _Answers, theirs: _Answers) -> Parity:
    return Parity(
        len(ours.similarity),
        _largest(ours.probabilities, theirs.probabilities),
        _largest(ours.similarity, theirs.similarity),
        _largest(ours.embeddings, theirs.embeddings),
        float(np.mean(ours.probabilities.argmax(1) == theirs.probabilities.argmax(1))),
        float(np.mean(ours.none_of_these == theirs.none_of_these)),
    )


def _largest(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    return float(np.abs(a - b).max())
