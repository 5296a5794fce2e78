"""What the page's scripts need to know, as JSON that is safe inside HTML."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from scs_supcon.report.gallery import Floats, Gallery, nearest

Places = Mapping[str, Floats]

MOST = 400  # classes that are put in order by what they are confused with


def page_data(evaluation: Mapping[str, Any], gallery: Gallery, places: Places) -> Markup:
    """The images, their neighbours and places, and the confusion matrix."""
    fields = [_field(getattr(gallery, name), at) for name, at in places.items()]
    return embedded(
        {
            "classes": evaluation["classes"],
            "names": gallery.names,
            "splits": gallery.splits,
            "labels": gallery.labels.tolist(),
            "predictions": gallery.predictions.tolist(),
            "chances": _short(gallery.chances),
            "refused": [int(refused) for refused in gallery.refused],
            "jpegs": [base64.b64encode(jpeg).decode() for jpeg in gallery.jpegs],
            "fields": fields,
            "confusion": _confusion(evaluation),
        }
    )


def embedded(value: Any) -> Markup:
    """JSON that no name in it can end or turn into markup."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _field(vectors: Floats, places: Floats) -> dict[str, Any]:
    order, likeness = nearest(vectors)
    return {
        "x": _short(places[:, 0]),
        "y": _short(places[:, 1]),
        "near": order.tolist(),
        "like": [_short(row) for row in likeness],
    }


def _short(values: Floats) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _confusion(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    matrix = np.array(evaluation["confusion"], np.int64)
    rows, columns = np.nonzero(matrix)
    return {
        "split": evaluation["split"],
        "cells": np.stack([rows, columns, matrix[rows, columns]], axis=1).tolist(),
        "totals": matrix.sum(1).tolist(),
        "order": together(matrix),
    }


def together(matrix: NDArray[np.int64]) -> Sequence[int]:
    """Put classes that are taken for each other side by side."""
    count = len(matrix)
    if not 2 < count <= MOST:
        return list(range(count))
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    apart = 1 - (shares + shares.T) / 2
    np.fill_diagonal(apart, 0)
    tree = linkage(squareform(apart, checks=False), "average", optimal_ordering=True)
    order: list[int] = leaves_list(tree).tolist()
    return order
