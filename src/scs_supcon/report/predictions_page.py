"""A self-contained page with the predictions for images: thumbnails by class."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

from scs_supcon.data.image_io import open_image
from scs_supcon.inference.types import Failure, Prediction
from scs_supcon.report.render import render_page

SIDE = 128  # of a thumbnail, in pixels
MAX_SHOWN = 2000  # images with a thumbnail, about 10 MB


@dataclass(frozen=True)
class _PageImage:
    name: str
    text: str
    source: str


def predictions_page(
    predictions: Sequence[Prediction], failures: Sequence[Failure], title: str
) -> str:
    """Return the page as HTML: the least certain images of each class come first.

    Args:
        predictions: of image files.
        failures: images that could not be read.
        title: of the page.
    """
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        name = "unknown" if prediction.unknown else prediction.label
        groups.setdefault(name, []).append(prediction)
    shown = 0
    sections = []
    for name in sorted(groups, key=lambda name: (name != "unknown", name)):
        tiles = []
        for prediction in sorted(groups[name], key=lambda p: p.probability):
            source = thumbnail(prediction.name) if shown < MAX_SHOWN else ""
            shown += 1
            tiles.append(_PageImage(prediction.name, _text(prediction), source))
        sections.append((name, tiles))
    return render_page(
        "predictions.html.j2",
        title=title,
        images=len(predictions),
        sections=sections,
        failures=failures,
    )


def thumbnail(path: str) -> str:
    """Return a small version of an image file as a data address."""
    image = open_image(path, at_least=SIDE)
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def _text(prediction: Prediction) -> str:
    text = f"{prediction.label} {prediction.probability:.1%}"
    if not prediction.unknown:
        return text
    similarity, needed = prediction.similarity, prediction.threshold
    return f"similarity {similarity:.2f}, {needed:.2f} needed; else {text}"
