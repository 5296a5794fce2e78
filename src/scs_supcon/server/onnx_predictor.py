"""An exported model behind the interface of the server: onnxruntime, without torch."""

import io
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from scs_supcon.data.crop import CentreCrop
from scs_supcon.data.image_io import MAX_PIXELS, ImageError, open_image
from scs_supcon.errors import UserError
from scs_supcon.inference.gallery_file import GalleryFile, find_gallery
from scs_supcon.inference.onnx_runtime import import_onnxruntime
from scs_supcon.io import records
from scs_supcon.io.values import ValueTree
from scs_supcon.server.predictor import Floats, ImageDecision, Pixels, TrainingGallery

KEY = "scs_supcon"  # of the metadata
SUPPORTED = 2


class OnnxPredictor:
    """An exported file; see `server.predictor.Predictor`. It has no heat maps.

    Args:
        session: of onnxruntime.
        metadata: of the file.
        gallery: the training images.
        file: the file, for errors.
    """

    def __init__(
        self, session: Any, metadata: ValueTree, gallery: TrainingGallery, file: Path
    ) -> None:
        self._session, self.gallery = session, gallery
        self.threads = _cores()
        self._outputs = [output.name for output in session.get_outputs()]
        read = partial(records.value_of_type, metadata, name=file)
        self._crop = _read_crop(read("preprocessing", dict), file)
        classes, thresholds = read("classes", list), read("thresholds", list)
        kinds = ({*map(type, classes)} == {str}, {*map(type, thresholds)} <= {int, float})
        if not all(kinds) or len(classes) != len(thresholds):
            raise records.RecordError(f"{file} is damaged: each class needs a name and a threshold")
        self.classes = tuple(classes)
        self.thresholds: Floats = np.array(thresholds, np.float64)
        pairs = records.table_of(metadata, "pairs", file)  # missing in format 1
        t, b = (records.value_of_type({"t": 0, "b": 0, **pairs}, key, float, file) for key in "tb")
        self.boundary: float | None = b / t if t and math.isfinite(b / t) else None
        self.facts: Mapping[str, Any] = {
            "encoder": read("encoder", str),
            "method": read("method", str),
            "image_size": self._crop.size,
            "metrics": read("metrics", dict),
            "rejection": read("rejection", dict),
            "runtime": "onnxruntime",
            "heat_map": False,
        }

    def check(self, file: Path) -> None:
        """Run the model once, and raise an error if its results do not fit metadata or gallery."""
        side, gallery, classes = self._crop.size, self.gallery, len(self.classes)
        try:
            decision = self.decide([np.zeros((side, side, 3), np.uint8)])[0]
        except Exception as error:  # onnxruntime raises errors of its own types
            raise _not_exported(file, error) from error
        if decision.probabilities.shape != (classes,):
            raise UserError(f"{file} is damaged: it names {classes} classes, but has others")
        widths = (gallery.common.shape[1], gallery.style.shape[1] or decision.style.size)
        fits = widths == (decision.common.size, decision.style.size)
        if gallery.names and not (fits and gallery.labels.max() < classes):
            raise UserError(f"the gallery of {file} does not belong to it: export both again")

    def prepare(self, image: Image.Image) -> Pixels:
        """Return the pixels (size, size, 3) that the model sees."""
        return np.asarray(self._crop(image))

    def decide(self, pixels: Sequence[Pixels]) -> list[ImageDecision]:
        """Return the decisions for prepared images."""
        results = self._session.run(None, {"pixels": np.stack(pixels)})
        out = dict(zip(self._outputs, results, strict=True))
        style = out.get("style", np.zeros((len(pixels), 0), np.float32))
        numbers = (out["probabilities"], out["similarity"], out["common"], style)
        known = (out["nearest"] >= 0) & (out["nearest"] < len(self.classes))
        if not (known.all() and all((np.abs(rows) < 2).all() for rows in numbers)):  # also NaN
            raise UserError("the model computes results that are not possible: export it again")
        return [
            ImageDecision(
                out["probabilities"][i],
                int(out["nearest"][i]),
                float(out["similarity"][i]),
                bool(out["unknown"][i]),
                out["common"][i],
                style[i],
            )
            for i in range(len(pixels))
        ]

    def heat_map(self, pixels: Pixels, label: int) -> Floats | None:
        """Return None: gradients need torch."""
        return None


class GalleryImages:
    """The images of a gallery file by number; see `server.service.KnownImages`."""

    def __init__(self, gallery: GalleryFile) -> None:
        self.names: Sequence[str] = gallery.names
        self._jpegs = gallery.jpegs
        self._number = {name: number for number, name in enumerate(gallery.names)}

    def number(self, name: str) -> int | None:
        """Return the number of an image that has a JPEG."""
        number = self._number.get(name)
        return number if number is not None and self._jpegs[number] else None

    def jpeg(self, number: int, side: int) -> bytes | None:
        """Return the JPEG of an image, smaller if asked for."""
        try:
            image = open_image(self.names[number], side, content=self._jpegs[number])
        except ImageError:  # damaged, or none
            return None
        image.thumbnail((side, side))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=85)
        return file.getvalue()


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_crop(steps: ValueTree, file: Path) -> CentreCrop:
    read = partial(records.value_of_type, steps, name=file)
    short_side, size = read("short_side", int), read("centre_crop", int)
    interpolation = read("interpolation", str)
    known = interpolation.upper() in Image.Resampling.__members__
    if not known or not 0 < size <= short_side or short_side**2 > MAX_PIXELS:
        detail = f"short side {short_side}, crop {size}, interpolation {interpolation[:20]!r}"
        raise records.RecordError(f"{file} is damaged: images cannot be prepared with {detail}")
    return CentreCrop(short_side, size, interpolation)


def _not_exported(file: Path, error: Exception) -> UserError:
    brief = " ".join(str(error).split())[:200]
    return UserError(f"{file} is not a model of `scs export`: {brief}")


def load_onnx(file: Path) -> tuple[OnnxPredictor, GalleryImages]:
    """Load an exported model, and the gallery beside it if there is one.

    Raises:
        UserError: the file is missing or was not exported by `scs export`.
    """
    onnxruntime = import_onnxruntime()
    try:
        records.open_record(file, records.memory_bytes() // 2, links=True).close()
    except records.MissingRecord as error:
        raise UserError(f"{error}: write it with `scs export RUN --onnx`") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # One thread per batch, several batches at a time: the threads of one batch would wait for each
    # other, and onnxruntime lets them use as much processor time for waiting as for the model.
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        text = session.get_modelmeta().custom_metadata_map[KEY]
    except Exception as error:  # onnxruntime raises errors of its own types
        raise _not_exported(file, error) from error
    metadata = records.parse_json_object(text, file, finite=True)
    if records.value_of_type(metadata, "format_version", int, file) > SUPPORTED:
        raise UserError(f"{file} was exported by a newer version: pip install --upgrade scs-supcon")
    empty = np.zeros((0, 0), np.float32)
    none = GalleryFile((), np.zeros(0, np.int64), empty, empty, ())
    stored = find_gallery(file, metadata.get("gallery")) or none
    gallery = TrainingGallery(stored.names, stored.labels, stored.common, stored.style)
    predictor = OnnxPredictor(session, metadata, gallery, file)
    predictor.check(file)
    return predictor, GalleryImages(stored)
