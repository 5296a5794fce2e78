"""How much of the class is in the style field, and what else is.

*Class from a field*: a linear classifier (`linear.py`) learns the class from the field of the
training images and is asked about the others. Chance is the share of their largest class: what
one gets by always naming it. A style field that holds nothing of the class stays at chance.

*View agreement*: the mean similarity of two views of one image, beside that of two images of
one class. A style field that describes the image agrees more over the first than the second.

*Effective rank* of the style of the images asked about, λ_i the eigenvalues of its covariance:

    exp(−Σ p_i ln p_i),    p_i = λ_i / Σ λ

1 if all style lies on a line, the number of columns if it fills all directions alike.
"""

from typing import Any

import torch
from torch import Tensor

from scs_supcon.evaluation import linear
from scs_supcon.evaluation.metrics import top_k

Part = tuple[Tensor, Tensor, Tensor]


def leakage(
    known: Part, asked: Part, classes: int, agreement: dict[str, float | None] | None
) -> dict[str, Any] | None:
    """Measure it; None where there is no style or nothing to learn from.

    Args:
        known: common, style and labels of the training images.
        asked: the same of other images.
        classes: how many there are.
        agreement: from `view_agreement`.
    """
    (common, style, labels), (asked_common, asked_style, asked_labels) = known, asked
    if not style.shape[1] or not len(labels):
        return None
    found = {
        "chance": float(torch.bincount(asked_labels).max() / len(asked_labels)),
        "class_from_common": read(common, labels, asked_common, asked_labels, classes),
        "class_from_style": read(style, labels, asked_style, asked_labels, classes),
        "view_agreement": agreement,
        "style_rank": effective_rank(asked_style),
        "style_columns": style.shape[1],
    }
    return found | {"sentence": sentence(found)}


def read(rows: Tensor, labels: Tensor, asked: Tensor, asked_labels: Tensor, classes: int) -> float:
    """Share of `asked` whose class a linear classifier of `rows` tells."""
    return top_k(linear.fit(rows, labels, classes).scores(asked), asked_labels)


def view_agreement(
    common: tuple[Tensor, Tensor], style: tuple[Tensor, Tensor], labels: Tensor
) -> dict[str, float | None]:
    """Mean similarities between two views, each (n, D), of the same images.

    Classmates are an image's first view and the second view of another image of its class.
    """
    return {
        "same_image": _same(*style),
        "classmates": _classmates(*style, labels),
        "common_same_image": _same(*common),
    }


def effective_rank(rows: Tensor) -> float:
    """Effective rank of the covariance of rows (n, D); 0 if all rows are the same."""
    centred = rows.double() - rows.double().mean(0)
    sizes = torch.linalg.eigvalsh(centred.T @ centred).clamp_min(0)
    if sizes.sum() <= 1e-12 * len(rows):
        return 0.0
    return float(torch.special.entr(sizes / sizes.sum()).sum().exp())


def sentence(found: dict[str, Any]) -> str:
    """The finding in plain words."""
    chance, common, style = (
        found[name] for name in ("chance", "class_from_common", "class_from_style")
    )
    excess = (style - chance) / max(common - chance, 1e-9)
    if style <= chance + 0.02 or excess < 0.1:
        verdict = "style holds next to nothing of the class"
    elif excess < 0.4:
        verdict = "style holds a little of the class"
    elif excess < 0.8:
        verdict = "style holds much of the class"
    else:
        almost = "almost " if excess < 0.995 else ""
        verdict = f"style holds {almost}as much of the class as common does"
    return (
        f"The class of {style:.0%} of the images can be told from the style field alone, against "
        f"{common:.0%} from the common field and {chance:.0%} by chance: {verdict}."
    )


def _same(first: Tensor, second: Tensor) -> float:
    return float((first * second).sum(1).double().mean())


def _classmates(first: Tensor, second: Tensor, labels: Tensor) -> float | None:
    """Mean over ordered pairs of different images of one class, from sums over classes."""
    classes = int(labels.max()) + 1
    zeros = first.new_zeros(classes, first.shape[1], dtype=torch.float64)
    a = zeros.index_add(0, labels, first.double())
    b = zeros.index_add(0, labels, second.double())
    counts = torch.bincount(labels, minlength=classes)
    pairs = int((counts * (counts - 1)).sum())
    own = (first.double() * second.double()).sum()
    return float(((a * b).sum() - own) / pairs) if pairs else None
