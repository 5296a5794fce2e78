"""Mean cosines of positive and negative pairs, from sums over classes instead of pairs."""

import math

import torch
from torch import Tensor

from scs_supcon.kernels.autograd import wide


@torch.no_grad()
def mean_cosines(rows: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the mean cosine of positive and of negative pairs of two different rows.

        Σ_{u,v} q_uv x_u·x_v = ‖Pᵀ X‖²  (Frobenius),   q_uv = p_u·p_v

    x are the rows at unit length, p their one-hot or soft labels. The mean of an empty set is NaN.

    Args:
        rows: `(n, d)`.
        labels: `(n,)` integers, or `(n, K)` probabilities.
    """
    x = torch.nn.functional.normalize(rows.to(wide(rows)), dim=1)
    if labels.dim() == 1:
        classes, index = torch.unique(labels, return_inverse=True)
        sums = x.new_zeros(len(classes), x.shape[1]).index_add_(0, index, x)
        counts = torch.bincount(index, minlength=len(classes)).to(x.dtype)
        own = x.new_ones(len(x))
    else:
        p = labels.to(x.dtype)
        sums, counts, own = p.T @ x, p.sum(0), p.square().sum(1)
    square = x.square().sum(1)  # 1, or 0 for zero rows
    same = float(sums.square().sum() - own @ square)
    total = float(x.sum(0).square().sum() - square.sum())
    positive = float(counts.square().sum() - own.sum())
    pairs = len(x) * (len(x) - 1)
    return _ratio(same, positive), _ratio(total - same, pairs - positive)


def _ratio(total: float, count: float) -> float:
    return total / count if count > 1e-9 else math.nan
