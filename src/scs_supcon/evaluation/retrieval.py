"""How well images find others of their class: P@1 and MAP@R (Musgrave et al., 2020).

For an image with R others of its class, the R most similar other images are looked at:

    P@1   = [the first of them is of the class]
    MAP@R = (1/R) Σ_{i=1..R} [the i-th is of the class] · (share of the class among the first i)

Means over images; one that is alone in its class has nothing to find and is left out.
"""

import torch
from torch import Tensor

from scs_supcon.evaluation.metrics import chunks, evenly

QUERIES = 4000  # asked at most; all images can be found


def retrieval(rows: Tensor, labels: Tensor, queries: int = QUERIES) -> dict[str, float | None]:
    """P@1 and MAP@R by cosine of unit rows (n, D); None where no class has two images."""
    others = torch.bincount(labels)[labels] - 1
    asked = torch.nonzero(others > 0)[:, 0]
    asked = asked[evenly(len(asked), queries)]
    if not len(asked):
        return {"p_at_1": None, "map_at_r": None}
    first, precision = 0.0, 0.0
    most = int(others[asked].max())
    place = torch.arange(1, most + 1, dtype=torch.float64)
    for some in chunks(len(asked), len(rows)):
        query = asked[some]
        similar = rows[query] @ rows.T
        similar[torch.arange(len(query)), query] = -torch.inf
        found = labels[similar.topk(most, dim=1).indices] == labels[query, None]
        first += float(found[:, 0].double().sum())
        counted = found & (place <= others[query, None])
        share = counted.cumsum(1) / place
        precision += float(((share * counted).sum(1) / others[query]).sum())
    return {"p_at_1": first / len(asked), "map_at_r": precision / len(asked)}
