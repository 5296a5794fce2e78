"""Which images meet in which batch: pure functions of the labels, the seed and the epoch.

A plan is a list of batches; a batch is one array of positions for each process. The batch joined
over the processes, and the number of batches, are the same for every number of processes and in
every epoch, so going on after a stop means skipping the batches already done.
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
Kind = Literal["shuffle", "balanced", "long_tail"]

MAX_REPEATS = 4  # more copies of a few images would only be learnt by heart
LONELY_LIMIT = 0.05


def plan_epoch(
    labels: Positions,
    batch_size: int,
    *,
    kind: Kind,
    per_class: int,
    seed: int,
    epoch: int,
    world: int = 1,
) -> Plan:
    """Plan one epoch.

    Args:
        labels: The class of each position.
        batch_size: The most positions in a batch, over all processes together.
        kind: "shuffle" draws without looking at classes. "balanced" puts `per_class` positions of
            a class side by side, batch_size / per_class classes in a batch. Both visit every
            position exactly once. "long_tail" is balanced, and repeats the positions of a class
            with n of at most m positions √(m/n) times, at most 4.
        per_class: Positions of one class that stay together (K of P × K); unused by "shuffle".
        seed: Seed of the run.
        epoch: Number of the epoch.
        world: Number of processes.

    Returns:
        [batch][process] → positions.
    """
    _check(len(labels), batch_size, kind, per_class)
    rng = np.random.default_rng((seed, epoch))
    if kind == "shuffle":
        batches = _cut(rng.permutation(len(labels)), batch_size)
    else:
        repeated = _repeated(labels, rng) if kind == "long_tail" else _by_class(labels, rng)
        batches = _balanced(repeated, batch_size, per_class, rng)
    if min(map(len, batches)) < world:
        raise UserError(
            f"a batch of {min(map(len, batches))} images cannot be shared by {world} processes: "
            "use fewer processes or a larger batch size"
        )
    return [np.array_split(batch, world) for batch in batches]


def batch_keys(
    plan: Plan, epoch: int, rank: int = 0, skip: int = 0
) -> list[list[tuple[int, int, int]]]:
    """What one process asks of a `ViewDataset`, batch by batch: a `batch_sampler`.

    A key is (epoch, position, copy); the copy counts the visits to a position in this epoch, so
    that "long_tail" draws new views each time.
    """
    visits: Counter[int] = Counter()
    keys = []
    for batch in plan:
        mine = []
        for process, positions in enumerate(batch):
            for position in positions.tolist():
                if process == rank:
                    mine.append((epoch, position, visits[position]))
                visits[position] += 1
        keys.append(mine)
    return keys[skip:]


def choose_batches(labels: Positions, batch_size: int) -> tuple[Kind, int]:
    """Choose "balanced" where plain shuffling would leave more than 5 % of the anchors alone.

    Anchors whose class has no other image are not counted: no batch can help them. The second
    value is the number of images of a class to keep together.
    """
    counts = np.bincount(labels)
    counts = counts[counts > 1]
    if not len(counts) or batch_size < 4:
        return "shuffle", 2
    alone = [_alone_by_chance(int(count), len(labels), batch_size) for count in counts]
    share = float(np.average(alone, weights=counts))
    per_class = max(2, min(4, int(np.median(counts)), batch_size // 4))
    return ("balanced" if share > LONELY_LIMIT else "shuffle"), per_class


def share_without_positives(labels: Positions, plan: Plan) -> float:
    """Share of anchors with no other image of their class in the joined batch."""
    return float(np.mean(_other_images(labels, plan) == 0))


def positives_per_anchor(labels: Positions, plan: Plan) -> float:
    """Mean number of other images of an anchor's class in the joined batch."""
    return float(np.mean(_other_images(labels, plan)))


def _check(n: int, batch_size: int, kind: str, per_class: int) -> None:
    if n == 0:
        raise UserError("there are no training images to make batches of")
    if batch_size < 2:
        raise UserError(f"batch_size is {batch_size}: pairs need at least 2")
    if kind not in ("shuffle", "balanced", "long_tail"):
        raise UserError(f"batches is {kind!r}, expected shuffle, balanced or long_tail")
    if kind != "shuffle" and not 2 <= per_class <= batch_size // 2:
        raise UserError(
            f"per_class is {per_class} and batch_size {batch_size}: a batch needs two images or "
            "more of a class, and two classes or more"
        )


def _cut(positions: Positions, batch_size: int) -> list[Positions]:
    """Full batches; the last two share what is left if the last would be less than half full."""
    n = len(positions)
    ends = [*range(batch_size, n, batch_size), n]
    if len(ends) > 1 and 2 * (n - ends[-2]) < batch_size:
        begin = ends[-2] - batch_size
        ends[-2] = begin + (n - begin + 1) // 2
    return [positions[begin:end] for begin, end in pairwise([0, *ends])]


def _by_class(labels: Positions, rng: np.random.Generator) -> list[Positions]:
    """The positions of each class, shuffled."""
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels))[:-1]
    return [rng.permutation(members) for members in np.split(order, ends) if len(members)]


def _repeated(labels: Positions, rng: np.random.Generator) -> list[Positions]:
    """The same, rare classes several times over; one order, so copies lie far apart."""
    classes = _by_class(labels, rng)
    most = max(map(len, classes))
    repeats = [min(MAX_REPEATS, math.sqrt(most / len(members))) for members in classes]
    return [
        np.resize(members, round(repeat * len(members)))
        for members, repeat in zip(classes, repeats, strict=True)
    ]


def _balanced(
    classes: list[Positions], batch_size: int, per_class: int, rng: np.random.Generator
) -> list[Positions]:
    """Lay the pieces of all classes in one line, each class evenly spaced, and cut the line.

    A class with m pieces has one at each (j + u) / m with its own u: neighbours in the line are
    of different classes, and large classes are met throughout the epoch. Classes of a single
    position are pooled; a piece that is still single goes first, where it is never cut off alone.
    """
    pieces: list[Positions] = []
    places: list[float] = []
    for members in _singles_pooled(classes):
        mine = _pieces(members, per_class, rng)
        pieces += mine
        first = rng.random() if len(members) > 1 else -1.0
        places += ((np.arange(len(mine)) + first) / len(mine)).tolist()
    line = [pieces[index] for index in np.argsort(places, kind="stable")]
    ends = _cuts(np.array([len(piece) for piece in line]), batch_size)
    return [rng.permutation(np.concatenate(line[begin:end])) for begin, end in pairwise([0, *ends])]


def _singles_pooled(classes: list[Positions]) -> list[Positions]:
    singles = [members for members in classes if len(members) == 1]
    others = [members for members in classes if len(members) > 1]
    return [*others, np.concatenate(singles)] if singles else others


def _pieces(members: Positions, per_class: int, rng: np.random.Generator) -> list[Positions]:
    """Pieces of `per_class` or a little less, but at least two: an odd class in pieces of two has
    one of three. The short ones may be anywhere."""
    n = len(members)
    number = max(1, min(-(-n // per_class), n // 2))
    sizes = n // number + (np.arange(number) < n % number)
    return np.split(members, np.cumsum(rng.permutation(sizes))[:-1])


def _cuts(sizes: Positions, batch_size: int) -> list[int]:
    """Where to cut a line of pieces so that no batch is larger than `batch_size`.

    Two ways, and both give a number of batches that the order of the pieces cannot change: the
    same number of pieces each, or the same number of positions each up to the next whole piece.
    The one with fewer batches is taken.
    """
    total, longest = int(sizes.sum()), int(sizes.max())
    if total <= batch_size:
        return [len(sizes)]
    number, weights = -(-len(sizes) // (batch_size // longest)), np.ones_like(sizes)
    by_positions = -(-total // (batch_size - longest + 1))
    if by_positions < number and by_positions * longest <= total:
        number, weights = by_positions, sizes
    filled = np.cumsum(weights)
    targets = -(-np.arange(1, number + 1) * filled[-1] // number)
    return [int(end) + 1 for end in np.searchsorted(filled, targets)]


def _alone_by_chance(count: int, n: int, batch_size: int) -> float:
    """Probability that a batch drawn around one anchor holds no other of its `count` images."""
    others = min(batch_size, n) - 1
    if n - count < others:
        return 0.0
    return math.exp(_log_choose(n - count, others) - _log_choose(n - 1, others))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _other_images(labels: Positions, plan: Plan) -> Positions:
    """For each anchor: other images of its class in its batch; copies of one count once."""
    found = []
    for batch in plan:
        positions = np.concatenate(batch)
        images = np.bincount(labels[np.unique(positions)])
        found.append(images[labels[positions]] - 1)
    return np.concatenate(found)
