"""Maps: vectors laid out on a plane so that near stays near."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

FEW = 12  # below this many images a map of neighbourhoods says nothing


def lay_out(vectors: Floats) -> Floats:
    """Return places `(n, 2)` between 0 and 1: t-SNE, the same every time.

    Fewer than a dozen images are laid out by their two principal components. Both sides are
    scaled alike, so distances on the map can be compared.
    """
    places = _principal(vectors) if len(vectors) < FEW else _neighbour_embedding(vectors)
    if not len(places):
        return places
    low, high = places.min(0), places.max(0)
    span = max(float((high - low).max()), 1e-9)
    return np.asarray((places - (low + high) / 2) / span + 0.5, np.float32)


def _principal(vectors: Floats) -> Floats:
    if len(vectors) < 2 or vectors.shape[1] < 2:
        return np.zeros((len(vectors), 2), np.float32)
    centred = vectors - vectors.mean(0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(left[:, :2] * scale[:2], np.float32)


def _neighbour_embedding(vectors: Floats) -> Floats:
    from openTSNE import TSNE

    # Half of the usual steps and a coarser sum: the same image in a third of the time.
    made = TSNE(
        perplexity=min(30.0, (len(vectors) - 1) / 3),
        metric="cosine",
        neighbors="exact",
        initialization="pca",
        early_exaggeration_iter=150,
        n_iter=300,
        theta=0.8,
        n_jobs=1,  # threads cost more than they bring here
        random_state=0,
    ).fit(vectors)
    return np.asarray(made, np.float32)
