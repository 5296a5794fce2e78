"""Bootstrap intervals of scores that are means over classes."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

SAMPLES = 2000
MAX_COUNTS = 2**22  # held in memory: 32 MB


def class_intervals(
    predicted: Tensor, labels: Tensor, level: float = 0.95, samples: int = SAMPLES, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return percentile intervals of macro-F1 and balanced accuracy over the classes present.

    Both depend only on how often each cell (label, prediction) occurs, so one multinomial draw of
    the cells is equivalent to drawing n images with replacement.
    """
    pairs = np.stack([labels.numpy(), predicted.numpy()])
    cells, counts = np.unique(pairs, axis=1, return_counts=True)
    by_label, by_prediction = (_indicators(column, cells) for column in cells)
    is_correct = cells[0] == cells[1]
    n, rng = int(counts.sum()), np.random.default_rng(seed)
    f1, recall = [], []
    step = max(1, MAX_COUNTS // len(counts))
    for start in range(0, samples, step):
        draws = rng.multinomial(n, counts / n, min(step, samples - start)).astype(np.float64)
        correct, present = (draws * is_correct) @ by_label, draws @ by_label
        f1.append(_mean_ratio(2 * correct, present + draws @ by_prediction, present > 0))
        recall.append(_mean_ratio(correct, present, present > 0))
    tails = [(1 - level) / 2, (1 + level) / 2]
    values = {"macro_f1": np.concatenate(f1), "balanced_accuracy": np.concatenate(recall)}
    return {name: tuple(np.quantile(score, tails).tolist()) for name, score in values.items()}


def _indicators(column: NDArray[np.int64], cells: NDArray[np.int64]) -> csr_array:
    """Return a sparse matrix (cells, classes) that adds up cells of the same class."""
    classes = np.unique(cells)
    rows, columns = np.arange(len(column)), np.searchsorted(classes, column)
    return csr_array((np.ones(len(column)), (rows, columns)), shape=(len(column), len(classes)))


def _mean_ratio(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], present: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the mean of the ratios over the classes that are present in each draw."""
    ratios = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=present)
    means: NDArray[np.float64] = ratios.sum(1) / present.sum(1)
    return means
