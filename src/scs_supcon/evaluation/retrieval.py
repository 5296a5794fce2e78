"""How well images retrieve others of their class: P@1 and MAP@R (Musgrave et al., 2020).

An image with R other images of its class retrieves the R most similar other images:

    P@1   = [the first of them is of the class]
    MAP@R = (1/R) Σ_{i=1..R} [the i-th is of the class] · (share of the class among the first i)

Both are averaged over images. Images without another image of their class are left out.
"""

import torch
from torch import Tensor

from scs_supcon.evaluation.metrics import chunks
from scs_supcon.evaluation.record import Retrieval
from scs_supcon.kernels.layout import evenly_spaced

MAX_QUERIES = 4000  # the retrieved images are not limited


def retrieval(rows: Tensor, labels: Tensor, max_queries: int = MAX_QUERIES) -> Retrieval:
    """Compute P@1 and MAP@R by cosine similarity of unit rows (n, D)."""
    positives = torch.bincount(labels)[labels] - 1
    queries = torch.nonzero(positives > 0)[:, 0]
    queries = queries[evenly_spaced(len(queries), max_queries)]
    if not len(queries):
        return Retrieval(precision_at_1=None, map_at_r=None)
    first_correct, precision = 0.0, 0.0
    max_positives = int(positives[queries].max())
    rank = torch.arange(1, max_positives + 1, dtype=torch.float64)
    for chunk in chunks(len(queries), len(rows)):
        query = queries[chunk]
        similarity = rows[query] @ rows.T
        similarity[torch.arange(len(query)), query] = -torch.inf
        correct = labels[similarity.topk(max_positives, dim=1).indices] == labels[query, None]
        first_correct += float(correct[:, 0].double().sum())
        counted = correct & (rank <= positives[query, None])
        share = counted.cumsum(1) / rank
        precision += float(((share * counted).sum(1) / positives[query]).sum())
    return Retrieval(precision_at_1=first_correct / len(queries), map_at_r=precision / len(queries))
