"""Plan the batches of an epoch as a pure function of the labels, the seed and the epoch.

A plan is a list of batches; a batch is one array of positions per process. The number of processes
does not change the union of a batch over the processes, and every epoch has the same number of
batches, so a run resumes by skipping completed batches.
"""

import math
from collections import Counter
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scs_supcon.errors import UserError

Positions = NDArray[np.int64]
Plan = list[list[Positions]]
BatchKind = Literal["shuffle", "balanced", "long_tail"]

MAX_REPEATS = 4  # with more copies, the few images of a class would be memorised
MAX_SHARE_WITHOUT_POSITIVES = 0.05


def plan_epoch(
    labels: Positions,
    batch_size: int,
    *,
    kind: BatchKind,
    per_class: int,
    seed: int,
    epoch: int,
    world: int = 1,
) -> Plan:
    """Return the plan of one epoch.

    Args:
        labels: The class of each position.
        batch_size: The maximum number of positions in a batch, over all processes.
        kind: "shuffle" ignores the classes. "balanced" keeps `per_class` positions of a class
            together, so that a batch has batch_size / per_class classes. Both visit every position
            exactly once. "long_tail" is balanced and repeats the positions of a class √(m/n)
            times (at most 4), where n is the size of the class and m that of the largest one.
        per_class: Positions of one class that stay together (K in P × K); unused by "shuffle".
        seed: Seed of the run.
        epoch: Number of the epoch.
        world: Number of processes.

    Returns:
        [batch][process] → positions.
    """
    _check(len(labels), batch_size, kind, per_class)
    rng = np.random.default_rng((seed, epoch))
    if kind == "shuffle":
        batches = _full_batches(rng.permutation(len(labels)), batch_size)
    else:
        by_class = _repeat_rare_classes if kind == "long_tail" else _positions_by_class
        batches = _balanced_batches(by_class(labels, rng), batch_size, per_class, rng)
    if min(map(len, batches)) < world:
        raise UserError(
            f"a batch of {min(map(len, batches))} images cannot be divided among {world} "
            "processes: use fewer processes or a larger batch size"
        )
    return [np.array_split(batch, world) for batch in batches]


def batch_keys(
    plan: Plan, epoch: int, rank: int = 0, skip: int = 0
) -> list[list[tuple[int, int, int]]]:
    """Return the keys of a `ViewDataset` for one process, batch by batch: a `batch_sampler`.

    A key is (epoch, position, copy). The copy counts the visits to a position in this epoch, so
    that repeated positions of "long_tail" have different views.
    """
    visits: Counter[int] = Counter()
    keys = []
    for batch in plan:
        batch_of_rank = []
        for process, positions in enumerate(batch):
            for position in positions.tolist():
                if process == rank:
                    batch_of_rank.append((epoch, position, visits[position]))
                visits[position] += 1
        keys.append(batch_of_rank)
    return keys[skip:]


def choose_batches(labels: Positions, batch_size: int) -> tuple[BatchKind, int]:
    """Return the kind of batches, and the number of images of a class to keep together.

    The kind is "balanced" if shuffling would leave more than 5% of the anchors without positives.
    Anchors whose class has no other image are not counted: no batch has positives for them.
    """
    counts = np.bincount(labels)
    counts = counts[counts > 1]
    if not len(counts) or batch_size < 4:
        return "shuffle", 2
    probabilities = [_without_positives(int(n), len(labels), batch_size) for n in counts]
    share = float(np.average(probabilities, weights=counts))
    per_class = max(2, min(4, int(np.median(counts)), batch_size // 4))
    return ("balanced" if share > MAX_SHARE_WITHOUT_POSITIVES else "shuffle"), per_class


def share_without_positives(labels: Positions, plan: Plan) -> float:
    """Return the share of anchors with no other image of their class in the whole batch."""
    return float(np.mean(_other_images(labels, plan) == 0))


def positives_per_anchor(labels: Positions, plan: Plan) -> float:
    """Return the mean number of other images of an anchor's class in the whole batch."""
    return float(np.mean(_other_images(labels, plan)))


def _check(n: int, batch_size: int, kind: str, per_class: int) -> None:
    if n == 0:
        raise UserError("there are no training images")
    if batch_size < 2:
        raise UserError(f"batch_size must be at least 2 to form pairs, got {batch_size}")
    if kind not in ("shuffle", "balanced", "long_tail"):
        raise UserError(f"batches must be shuffle, balanced or long_tail, got {kind!r}")
    if kind != "shuffle" and not 2 <= per_class <= batch_size // 2:
        raise UserError(
            f"per_class must be between 2 and half of batch_size ({batch_size}), so that a batch "
            f"contains two classes, got {per_class}"
        )


def _full_batches(positions: Positions, batch_size: int) -> list[Positions]:
    """Return full batches; if the last is less than half full, the last two have equal sizes."""
    n = len(positions)
    ends = [*range(batch_size, n, batch_size), n]
    if len(ends) > 1 and 2 * (n - ends[-2]) < batch_size:
        start = ends[-2] - batch_size
        ends[-2] = start + (n - start + 1) // 2
    return [positions[start:end] for start, end in pairwise([0, *ends])]


def _positions_by_class(labels: Positions, rng: np.random.Generator) -> list[Positions]:
    """Return the positions of each class, shuffled."""
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels))[:-1]
    return [rng.permutation(members) for members in np.split(order, ends) if len(members)]


def _repeat_rare_classes(labels: Positions, rng: np.random.Generator) -> list[Positions]:
    """Return the positions of each class; the positions of rare classes are repeated in order."""
    classes = _positions_by_class(labels, rng)
    most = max(map(len, classes))
    repeats = [min(MAX_REPEATS, math.sqrt(most / len(members))) for members in classes]
    return [
        np.resize(members, round(repeat * len(members)))
        for members, repeat in zip(classes, repeats, strict=True)
    ]


def _balanced_batches(
    classes: list[Positions], batch_size: int, per_class: int, rng: np.random.Generator
) -> list[Positions]:
    """Return batches cut from a sequence of pieces of all classes.

    A class with m pieces has one at each (j + u) / m with a random u: neighbours in the sequence
    belong to different classes, and large classes occur throughout the epoch. Classes of a single
    position are pooled; a piece of one position comes first, where it is never a whole batch.
    """
    pieces: list[Positions] = []
    order: list[float] = []
    for members in _pool_single_positions(classes):
        class_pieces = _class_pieces(members, per_class, rng)
        pieces += class_pieces
        first = rng.random() if len(members) > 1 else -1.0
        order += ((np.arange(len(class_pieces)) + first) / len(class_pieces)).tolist()
    sequence = [pieces[index] for index in np.argsort(order, kind="stable")]
    ends = _batch_ends(np.array([len(piece) for piece in sequence]), batch_size)
    return [
        rng.permutation(np.concatenate(sequence[start:end])) for start, end in pairwise([0, *ends])
    ]


def _pool_single_positions(classes: list[Positions]) -> list[Positions]:
    singles = [members for members in classes if len(members) == 1]
    others = [members for members in classes if len(members) > 1]
    return [*others, np.concatenate(singles)] if singles else others


def _class_pieces(members: Positions, per_class: int, rng: np.random.Generator) -> list[Positions]:
    """Return pieces of a class with about `per_class` positions, but at least two.

    A class of odd size in pieces of two has one piece of three. Sizes are in random order.
    """
    n = len(members)
    count = max(1, min(-(-n // per_class), n // 2))
    sizes = n // count + (np.arange(count) < n % count)
    return np.split(members, np.cumsum(rng.permutation(sizes))[:-1])


def _batch_ends(sizes: Positions, batch_size: int) -> list[int]:
    """Return the ends of the batches in a sequence of pieces with the given sizes.

    No batch is larger than `batch_size`. Batches have either the same number of pieces, or the same
    number of positions rounded up to a whole piece, whichever results in fewer batches. In both
    cases, the number of batches does not depend on the order of the pieces.
    """
    total, longest = int(sizes.sum()), int(sizes.max())
    if total <= batch_size:
        return [len(sizes)]
    count, weights = -(-len(sizes) // (batch_size // longest)), np.ones_like(sizes)
    by_positions = -(-total // (batch_size - longest + 1))
    if by_positions < count and by_positions * longest <= total:
        count, weights = by_positions, sizes
    filled = np.cumsum(weights)
    targets = -(-np.arange(1, count + 1) * filled[-1] // count)
    return [int(end) + 1 for end in np.searchsorted(filled, targets)]


def _without_positives(count: int, n: int, batch_size: int) -> float:
    """Return the probability that a random batch has only one of the `count` images of a class."""
    others = min(batch_size, n) - 1
    if n - count < others:
        return 0.0
    return math.exp(_log_choose(n - count, others) - _log_choose(n - 1, others))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _other_images(labels: Positions, plan: Plan) -> Positions:
    """Return the number of other images of each anchor's class in its batch; copies count once."""
    counts = []
    for batch in plan:
        positions = np.concatenate(batch)
        images = np.bincount(labels[np.unique(positions)])
        counts.append(images[labels[positions]] - 1)
    return np.concatenate(counts)
