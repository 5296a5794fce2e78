"""How far a score could be off: intervals from drawing the images again, with replacement."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

SAMPLES = 2000
AT_ONCE = 2**22  # counts held at once: 32 MB

Counts = NDArray[np.float64]


def class_intervals(
    predicted: Tensor, labels: Tensor, level: float = 0.95, samples: int = SAMPLES, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of macro-F1 and balanced accuracy, over the classes that are present.

    Both depend on how often each (right class, predicted class) occurs and on nothing else, so it
    is these cells that are drawn: one multinomial draw stands for drawing n images.
    """
    pairs = np.stack([labels.numpy(), predicted.numpy()])
    cells, counts = np.unique(pairs, axis=1, return_counts=True)
    sums = _class_sums(cells)
    n, rng = int(counts.sum()), np.random.default_rng(seed)
    f1, balanced = [], []
    step = max(1, AT_ONCE // len(counts))
    for start in range(0, samples, step):
        drawn = rng.multinomial(n, counts / n, min(step, samples - start))
        right, present, named = sums(drawn.astype(np.float64))
        f1.append(_mean_where(2 * right, present + named, present > 0))
        balanced.append(_mean_where(right, present, present > 0))
    tail = (1 - level) / 2
    found = {"macro_f1": np.concatenate(f1), "balanced_acc": np.concatenate(balanced)}
    return {name: _ends(values, tail) for name, values in found.items()}


def _class_sums(cells: NDArray[np.int64]) -> Callable[[Counts], tuple[Counts, Counts, Counts]]:
    """A function from counts of cells to, by class: images right, present, and named so."""
    labels, predicted = cells
    classes = np.unique(cells)

    def to_class(of: NDArray[np.int64]) -> Callable[[Counts], Counts]:
        order = np.argsort(of, kind="stable")
        names, starts = np.unique(of[order], return_index=True)
        columns = np.searchsorted(classes, names)

        def add(drawn: Counts) -> Counts:
            table = np.zeros((len(drawn), len(classes)))
            table[:, columns] = np.add.reduceat(drawn[:, order], starts, axis=1)
            return table

        return add

    by_label, by_name = to_class(labels), to_class(predicted)
    hits = (labels == predicted).astype(np.float64)
    return lambda drawn: (by_label(drawn * hits), by_label(drawn), by_name(drawn))


def _mean_where(above: Counts, below: Counts, there: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean of above / below over the classes that are there."""
    ratios = np.divide(above, below, out=np.zeros_like(above), where=there)
    means: NDArray[np.float64] = ratios.sum(1) / there.sum(1)
    return means


def _ends(values: NDArray[np.float64], tail: float) -> tuple[float, float]:
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
