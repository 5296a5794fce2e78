from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scs_supcon.data.sampler import (
    MAX_REPEATS,
    Plan,
    batch_keys,
    choose_batches,
    plan_epoch,
    positives_per_anchor,
    share_without_positives,
)
from scs_supcon.errors import UserError

KINDS = ("shuffle", "balanced", "long_tail")
examples = settings(max_examples=60, deadline=None, derandomize=True)
class_sizes = st.lists(st.integers(0, 15), min_size=1, max_size=12).filter(lambda n: sum(n) > 1)


def labels_of(sizes: list[int]) -> np.ndarray:
    """Return shuffled labels with the given class sizes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(0).permutation(labels)


def plan(labels: np.ndarray, batch_size: int, kind: str, **options: int) -> Plan:
    options = {"per_class": 2, "seed": 0, "epoch": 0} | options
    return plan_epoch(labels, batch_size, kind=kind, **options)


def joined(batches: Plan) -> list[np.ndarray]:
    return [np.concatenate(batch) for batch in batches]


def sizes_of(batches: Plan) -> list[int]:
    return [len(batch) for batch in joined(batches)]


@examples
@given(class_sizes, st.integers(4, 20), st.integers(2, 5), st.sampled_from(["shuffle", "balanced"]))
def test_every_position_is_visited_exactly_once(
    sizes: list[int], batch_size: int, per_class: int, kind: str
) -> None:
    labels = labels_of(sizes)
    per_class = min(per_class, batch_size // 2)
    batches = plan(labels, batch_size, kind, per_class=per_class)
    assert sorted(np.concatenate(joined(batches)).tolist()) == list(range(len(labels)))
    assert 1 <= min(sizes_of(batches)) <= max(sizes_of(batches)) <= batch_size


@examples
@given(class_sizes, st.integers(4, 20), st.sampled_from(KINDS))
def test_a_plan_is_a_pure_function(sizes: list[int], batch_size: int, kind: str) -> None:
    labels = labels_of(sizes)
    first, again = plan(labels, batch_size, kind), plan(labels, batch_size, kind)
    for batch, batch_again in zip(joined(first), joined(again), strict=True):
        np.testing.assert_array_equal(batch, batch_again)
    lengths = {len(plan(labels, batch_size, kind, epoch=epoch)) for epoch in range(6)}
    assert lengths == {len(first)}


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_and_seeds_differ(kind: str) -> None:
    labels = labels_of([20, 7, 30])
    base = np.concatenate(joined(plan(labels, 8, kind))).tolist()
    assert np.concatenate(joined(plan(labels, 8, kind, epoch=1))).tolist() != base
    assert np.concatenate(joined(plan(labels, 8, kind, seed=1))).tolist() != base


@examples
@given(class_sizes, st.integers(8, 20), st.sampled_from(KINDS))
def test_processes_divide_the_same_batches(sizes: list[int], batch_size: int, kind: str) -> None:
    labels = labels_of(sizes)
    single = plan(labels, batch_size, kind)
    for world in (1, 2, 3, 4):
        if min(sizes_of(single)) < world:
            with pytest.raises(UserError, match="cannot be divided"):
                plan(labels, batch_size, kind, world=world)
            continue
        together = plan(labels, batch_size, kind, world=world)
        for batch, divided in zip(single, together, strict=True):
            assert len(divided) == world
            np.testing.assert_array_equal(np.concatenate(divided), batch[0])
            lengths = [len(positions) for positions in divided]
            assert max(lengths) - min(lengths) <= 1


@examples
@given(class_sizes, st.integers(6, 20), st.integers(2, 5), st.integers(0, 3))
def test_balanced_batches_have_positives_for_all_but_single_images(
    sizes: list[int], batch_size: int, per_class: int, epoch: int
) -> None:
    labels = labels_of(sizes)
    options = {"per_class": min(per_class, batch_size // 2), "epoch": epoch}
    balanced = share_without_positives(labels, plan(labels, batch_size, "balanced", **options))
    assert balanced == pytest.approx(sizes.count(1) / sum(sizes))
    assert balanced <= share_without_positives(
        labels, plan(labels, batch_size, "shuffle", epoch=epoch)
    )


@examples
@given(class_sizes, st.integers(6, 20), st.integers(2, 5), st.sampled_from(KINDS))
def test_no_batch_is_a_single_image(
    sizes: list[int], batch_size: int, per_class: int, kind: str
) -> None:
    per_class = min(per_class, batch_size // 2)
    batches = plan(labels_of(sizes), batch_size, kind, per_class=per_class)
    assert min(sizes_of(batches)) >= 2


def test_equal_classes_result_in_batches_of_p_classes_times_k_images() -> None:
    labels = labels_of([24] * 16)
    for batch in joined(plan(labels, 32, "balanced", per_class=4)):
        counts = Counter(labels[batch].tolist())
        assert set(counts.values()) == {4}
        assert len(counts) == 8


def test_balanced_batches_are_nearly_full() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels = labels_of(rng.integers(2, 60, size=40).tolist())
        batches = plan(labels, 64, "balanced", per_class=4)
        assert len(batches) <= np.ceil(len(labels) / (64 - 3))
        assert min(sizes_of(batches)) > np.mean(sizes_of(batches)) - 10


def test_a_large_class_occurs_throughout_the_epoch() -> None:
    labels = labels_of([300] + [20] * 15)
    shares = [np.mean(labels[b] == 0) for b in joined(plan(labels, 40, "balanced", per_class=4))]
    assert 0.3 < min(shares) <= max(shares) < 0.7


def test_shuffling_fills_batches_and_halves_the_remainder() -> None:
    assert sizes_of(plan(labels_of([100]), 32, "shuffle")) == [32, 32, 18, 18]
    assert sizes_of(plan(labels_of([96]), 32, "shuffle")) == [32, 32, 32]
    assert sizes_of(plan(labels_of([116]), 32, "shuffle")) == [32, 32, 32, 20]
    assert sizes_of(plan(labels_of([33]), 32, "shuffle")) == [17, 16]
    assert sizes_of(plan(labels_of([5]), 32, "shuffle")) == [5]


@examples
@given(class_sizes, st.integers(4, 20), st.integers(0, 3))
def test_long_tail_repeats_classes_by_the_square_root_of_the_ratio(
    sizes: list[int], batch_size: int, epoch: int
) -> None:
    labels = labels_of(sizes)
    visits = Counter(
        np.concatenate(joined(plan(labels, batch_size, "long_tail", epoch=epoch))).tolist()
    )
    assert set(visits) == set(range(len(labels)))
    for label, size in enumerate(sizes):
        if size == 0:
            continue
        class_visits = [visits[position] for position in np.flatnonzero(labels == label).tolist()]
        repeat = min(MAX_REPEATS, np.sqrt(max(sizes) / size))
        assert sum(class_visits) == round(repeat * size)
        assert max(class_visits) - min(class_visits) <= 1


def test_long_tail_keeps_copies_apart() -> None:
    labels = labels_of([400, 25])
    for batch in joined(plan(labels, 40, "long_tail", per_class=4)):
        assert len(set(batch.tolist())) == len(batch)


def test_keys_count_the_visits_to_a_position() -> None:
    labels = labels_of([40, 4])
    batches = plan(labels, 10, "long_tail", world=2, epoch=7)
    keys = [batch_keys(batches, 7, rank) for rank in (0, 1)]
    copies_of: dict[int, list[int]] = {}
    for first, second, batch in zip(*keys, batches, strict=True):
        assert [position for _, position, _ in first] == batch[0].tolist()
        assert [position for _, position, _ in second] == batch[1].tolist()
        for epoch, position, copy in [*first, *second]:
            assert epoch == 7
            copies_of.setdefault(position, []).append(copy)
    assert all(copies == list(range(len(copies))) for copies in copies_of.values())
    assert max(map(len, copies_of.values())) == 4  # √10 times 4 is 13 visits
    assert batch_keys(batches, 7, rank=1, skip=2) == keys[1][2:]


def reference_positives(labels: np.ndarray, batches: Plan) -> tuple[float, float]:
    without, others, anchors = 0, 0, 0
    for batch in joined(batches):
        for a in batch:
            positives = {int(b) for b in batch if b != a and labels[b] == labels[a]}
            without += not positives
            others += len(positives)
            anchors += 1
    return without / anchors, others / anchors


@examples
@given(class_sizes, st.integers(4, 12), st.sampled_from(KINDS))
def test_positives_are_counted_as_in_a_plain_loop(
    sizes: list[int], batch_size: int, kind: str
) -> None:
    labels = labels_of(sizes)
    batches = plan(labels, batch_size, kind)
    without, others = reference_positives(labels, batches)
    assert share_without_positives(labels, batches) == pytest.approx(without)
    assert positives_per_anchor(labels, batches) == pytest.approx(others)


def test_balanced_batches_are_chosen_if_shuffling_leaves_anchors_without_positives() -> None:
    birds = labels_of([30] * 200)
    assert choose_batches(birds, 96) == ("balanced", 4)
    assert choose_batches(labels_of([100] * 10), 96) == ("shuffle", 4)
    assert choose_batches(labels_of([2] * 50), 16) == ("balanced", 2)
    assert choose_batches(labels_of([1] * 50), 16) == ("shuffle", 2)
    assert choose_batches(labels_of([30] * 200), 2)[0] == "shuffle"
    # 62% of anchors of 200 balanced classes have no positives in shuffled batches of 96.
    shares = [
        share_without_positives(birds, plan(birds, 96, "shuffle", epoch=epoch))
        for epoch in range(5)
    ]
    assert np.mean(shares) == pytest.approx(0.62, abs=0.02)


@given(class_sizes.filter(lambda sizes: max(sizes) > 1), st.integers(4, 30))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_chosen_batches_can_be_planned(sizes: list[int], batch_size: int) -> None:
    kind, per_class = choose_batches(labels_of(sizes), batch_size)
    batches = plan(labels_of(sizes), batch_size, kind, per_class=per_class)
    assert sum(len(rank) for batch in batches for rank in batch) == sum(sizes)


@pytest.mark.parametrize(
    ("labels", "batch_size", "kind", "per_class", "message"),
    [
        ([], 8, "shuffle", 2, "no training images"),
        ([0, 1], 1, "shuffle", 2, "at least 2"),
        ([0, 1], 8, "random", 2, "must be shuffle, balanced or long_tail, got 'random'"),
        ([0, 1], 8, "balanced", 1, r"between 2 and half of batch_size \(8\).*got 1"),
        ([0, 1], 8, "balanced", 5, "got 5"),
    ],
)
def test_invalid_batch_settings_are_errors(
    labels: list[int], batch_size: int, kind: str, per_class: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        plan(np.array(labels, dtype=np.int64), batch_size, kind, per_class=per_class)
