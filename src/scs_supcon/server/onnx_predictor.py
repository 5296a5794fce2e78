"""An exported model behind the interface of the server: onnxruntime, without torch."""

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from scs_supcon.data.crop import CentreCrop
from scs_supcon.errors import UserError
from scs_supcon.inference.gallery_file import GalleryFile, gallery_path, read_gallery
from scs_supcon.inference.onnx_runtime import import_onnxruntime
from scs_supcon.server.predictor import Floats, ImageDecision, Pixels, TrainingGallery

KEY = "scs_supcon"  # of the metadata
SUPPORTED = 2


class OnnxPredictor:
    """An exported file; see `server.predictor.Predictor`. It has no heat maps.

    Args:
        session: of onnxruntime.
        metadata: of the file.
        gallery: the training images.
    """

    def __init__(self, session: Any, metadata: Mapping[str, Any], gallery: TrainingGallery) -> None:
        self._session, self.gallery = session, gallery
        self.threads = _cores()
        self._outputs = [output.name for output in session.get_outputs()]
        steps, pairs = metadata["preprocessing"], metadata.get("pairs")
        self._crop = CentreCrop(steps["short_side"], steps["centre_crop"], steps["interpolation"])
        self.classes = tuple(metadata["classes"])
        self.thresholds: Floats = np.array(metadata["thresholds"])
        self.boundary: float | None = pairs["b"] / pairs["t"] if pairs and pairs["t"] else None
        self.facts: Mapping[str, Any] = {
            "encoder": metadata["encoder"],
            "method": metadata["method"],
            "image_size": steps["centre_crop"],
            "metrics": metadata["metrics"],
            "rejection": metadata["rejection"],
            "runtime": "onnxruntime",
            "heat_map": False,
        }

    def prepare(self, image: Image.Image) -> Pixels:
        """Return the pixels (size, size, 3) that the model sees."""
        return np.asarray(self._crop(image))

    def decide(self, pixels: Sequence[Pixels]) -> list[ImageDecision]:
        """Return the decisions for prepared images."""
        results = self._session.run(None, {"pixels": np.stack(pixels)})
        out = dict(zip(self._outputs, results, strict=True))
        style = out.get("style", np.zeros((len(pixels), 0), np.float32))
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
        content = self._jpegs[number]
        if not content:
            return None
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            if max(image.size) <= side:
                return content
            image.thumbnail((side, side))
            file = io.BytesIO()
            image.save(file, "JPEG", quality=85)
            return file.getvalue()


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_onnx(file: Path) -> tuple[OnnxPredictor, GalleryImages]:
    """Load an exported model, and the gallery beside it if there is one.

    Raises:
        UserError: the file is missing or was not exported by `scs export`.
    """
    if not file.is_file():
        raise UserError(f"{file} does not exist: write it with `scs export RUN --onnx`")
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # One thread per batch, several batches at a time: the threads of one batch would wait for each
    # other, and onnxruntime lets them use as much processor time for waiting as for the model.
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        metadata = json.loads(session.get_modelmeta().custom_metadata_map[KEY])
    except Exception as error:  # onnxruntime raises errors of its own types
        brief = " ".join(str(error).split())[:200]
        raise UserError(f"{file} is not a model of `scs export`: {brief}") from error
    if metadata["format_version"] > SUPPORTED:
        raise UserError(f"{file} was exported by a newer version: pip install --upgrade scs-supcon")
    beside = gallery_path(file)
    if beside.is_file():
        stored = read_gallery(beside)
    else:
        empty = np.zeros((0, 0), np.float32)
        stored = GalleryFile((), np.zeros(0, np.int64), empty, empty, ())
    gallery = TrainingGallery(stored.names, stored.labels, stored.common, stored.style)
    return OnnxPredictor(session, metadata, gallery), GalleryImages(stored)
