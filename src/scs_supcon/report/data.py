"""The data of the page's scripts, as JSON that is safe inside HTML."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from scs_supcon.evaluation.record import Evaluation
from scs_supcon.io.text import printable_name
from scs_supcon.report.figures import CLASS_COLOURS
from scs_supcon.report.gallery import FloatArray, ImageGallery, nearest

MapPoints = FloatArray

MOST_CLASSES = 400  # with more classes, ordering by confusion is too slow


def page_data(
    evaluation: Evaluation, gallery: ImageGallery, maps: Mapping[str, MapPoints]
) -> Markup:
    """Return the images with their neighbours and map points, and the confusion matrix."""
    fields = [_field(gallery.fields[name], points) for name, points in maps.items()]
    return safe_json(
        {
            "classes": [printable_name(name) for name in evaluation.classes],
            "colours": CLASS_COLOURS,
            "names": [printable_name(name) for name in gallery.names],
            "splits": gallery.splits,
            "labels": gallery.labels.tolist(),
            "predictions": gallery.predictions.tolist(),
            "confidences": _rounded(gallery.confidences),
            "rejected": [int(rejected) for rejected in gallery.rejected],
            "jpegs": [base64.b64encode(jpeg).decode() for jpeg in gallery.jpegs],
            "fields": fields,
            "confusion": _confusion(evaluation),
        }
    )


def safe_json(value: Any) -> Markup:
    """Return JSON in which no text can end the script element or become markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _field(vectors: FloatArray, points: MapPoints) -> dict[str, Any]:
    order, similarity = nearest(vectors)
    return {
        "x": _rounded(points[:, 0]),
        "y": _rounded(points[:, 1]),
        "neighbours": order.tolist(),
        "similarities": [_rounded(row) for row in similarity],
    }


def _rounded(values: FloatArray) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _confusion(evaluation: Evaluation) -> dict[str, Any]:
    totals = [0] * len(evaluation.classes)
    for label, _, images in evaluation.confusion:
        totals[label] += images
    return {
        "split": evaluation.split,
        "cells": [list(cell) for cell in evaluation.confusion],
        "totals": totals,
        "order": class_order(evaluation),
    }


def class_order(evaluation: Evaluation) -> Sequence[int]:
    """Return an order of the classes in which classes that are often confused are adjacent."""
    count = len(evaluation.classes)
    return (
        confusion_order(evaluation.confusion_matrix())
        if 2 < count <= MOST_CLASSES
        else list(range(count))
    )


def confusion_order(matrix: NDArray[np.int64]) -> Sequence[int]:
    """Return the order for a matrix of at least three classes; see `class_order`."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    distance = 1 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    order: list[int] = leaves_list(tree).tolist()
    return order
