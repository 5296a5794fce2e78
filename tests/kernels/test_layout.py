import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scs_supcon.kernels import Pairs
from scs_supcon.kernels.layout import (
    Layout,
    SortedLabels,
    Tile,
    evenly_spaced,
    lay_out,
    longest,
    members,
    same_class_pairs,
    tiles,
)

label_lists = st.lists(st.integers(-3, 3), max_size=14)


def sorted_labels(labels: list[int], local: list[int] | None = None) -> SortedLabels:
    positions = None if local is None else torch.tensor(local, dtype=torch.long)
    return SortedLabels(torch.tensor(sorted(labels), dtype=torch.long), positions)


def layout(rows: SortedLabels, columns: SortedLabels | None = None) -> Layout:
    return Layout(rows, torch.arange(len(rows)), columns)


def pairs_in(tile: Tile) -> list[tuple[int, int]]:
    return [
        (u, v)
        for u in range(tile.rows.start, tile.rows.stop)
        for v in range(tile.columns.start, tile.columns.stop)
    ]


@given(label_lists)
def test_rows_are_sorted_by_label_and_equal_labels_keep_their_order(labels: list[int]) -> None:
    numbers = torch.arange(len(labels), dtype=torch.float64)[:, None]
    order = lay_out(torch.tensor(labels, dtype=torch.long))
    rows, others = order.arrange(numbers, None)
    expected = sorted(range(len(labels)), key=lambda k: labels[k])
    assert others is None and order.symmetric and order.one_set and order.contains_self
    assert rows[:, 0].tolist() == expected
    assert order.rows.labels.tolist() == sorted(labels)
    assert len(order.rows) == len(labels)


@given(label_lists, label_lists, st.booleans())
def test_references_are_sorted_and_rows_are_found_among_them(
    labels: list[int], others: list[int], with_rows: bool
) -> None:
    numbers = torch.arange(len(labels) + len(others), dtype=torch.float64)[:, None]
    given_labels = (torch.tensor(x, dtype=torch.long) for x in (labels, others))
    order = lay_out(*given_labels, with_rows=with_rows)
    rows, columns = order.arrange(numbers[: len(labels)], numbers[len(labels) :])
    assert columns is not None and not order.symmetric and not order.one_set
    assert order.contains_self == with_rows
    assert rows[:, 0].tolist() == sorted(range(len(labels)), key=lambda k: labels[k])
    right = labels + others
    expected = range(0 if with_rows else len(labels), len(right))
    assert sorted(columns[:, 0].tolist()) == list(expected)
    assert [right[int(k)] for k in columns[:, 0]] == order.right.labels.tolist()
    assert order.right.labels.tolist() == sorted(right[k] for k in expected)
    if with_rows:
        assert torch.equal(columns[order.right.local], rows)
    else:
        assert order.right.local is None


def test_gradients_of_sorted_rows() -> None:
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    rows, _ = lay_out(torch.tensor([4, 1, 3, 0, 2])).arrange(x, None)
    weights = torch.arange(5.0, dtype=torch.float64)[:, None]
    (rows * weights).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [4, 1, 3, 0, 2]


@given(label_lists, st.integers(1, 6))
def test_tiles_of_rows_among_themselves_hold_every_pair_once(labels: list[int], size: int) -> None:
    rows = sorted_labels(labels)
    pairs: list[tuple[int, int]] = []
    for tile in tiles(layout(rows), size):
        in_tile = pairs_in(tile)
        pairs += in_tile if tile.diagonal else in_tile + [(v, u) for u, v in in_tile]
        assert tile.diagonal == any(u == v for u, v in in_tile)
    n = len(labels)
    assert sorted(pairs) == [(u, v) for u in range(n) for v in range(n)]


@given(label_lists, label_lists, st.integers(1, 6))
def test_tiles_of_references_hold_every_pair_once(
    labels: list[int], others: list[int], size: int
) -> None:
    pairs = [
        p
        for tile in tiles(layout(sorted_labels(labels), sorted_labels(others)), size)
        for p in pairs_in(tile)
    ]
    assert sorted(pairs) == [(u, v) for u in range(len(labels)) for v in range(len(others))]


@given(label_lists, label_lists, st.booleans(), st.integers(1, 6))
def test_same_class_pairs_are_only_in_the_marked_part_of_a_tile(
    labels: list[int], others: list[int], apart: bool, size: int
) -> None:
    rows = sorted_labels(labels)
    columns = sorted_labels(others) if apart else None
    for tile in tiles(layout(rows, columns), size):
        across = rows.labels[tile.rows, None] == (columns or rows).labels[None, tile.columns]
        if tile.same is not None:
            assert not tile.uniform or bool(across[tile.same].all())
            across[tile.same] = False
        assert not across.any()


def test_most_tiles_need_no_mask() -> None:
    all_tiles = list(tiles(layout(sorted_labels([0] * 4 + [1] * 4)), 2))
    assert sum(tile.same is None for tile in all_tiles) == 4
    assert sum(tile.uniform for tile in all_tiles) == 6


@given(label_lists, label_lists)
def test_counts(labels: list[int], others: list[int]) -> None:
    rows, columns = sorted_labels(labels), sorted_labels(others)
    assert same_class_pairs(rows, rows) == sum(x == y for x in labels for y in labels)
    assert same_class_pairs(rows, columns) == sum(x == y for x in labels for y in others)
    assert members(rows.labels, columns).tolist() == [others.count(x) for x in sorted(labels)]
    classes, counts = rows.counts
    assert classes.tolist() == sorted(set(labels))
    assert counts.tolist() == [labels.count(x) for x in sorted(set(labels))]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_self_pairs_of_gathered_rows(size: int) -> None:
    everyone = sorted_labels([0, 0, 0, 1, 1, 2, 2], local=[1, 3, 6])
    mine = sorted_labels([0, 1, 2])
    positions = []
    for tile in tiles(layout(mine, everyone), size):
        where = everyone.self_pairs(tile)
        assert where is not None
        row, column = where
        positions += [
            (tile.rows.start + int(r), tile.columns.start + int(c))
            for r, c in zip(row, column, strict=True)
        ]
    assert sorted(positions) == [(0, 1), (1, 3), (2, 6)]


def test_references_have_no_self_pairs() -> None:
    rows = sorted_labels([0, 1])
    assert [rows.self_pairs(tile) for tile in tiles(layout(rows, rows), 2)] == [None]


@given(
    label_lists,
    label_lists,
    st.sampled_from(["rows", "references", "rows and references"]),
    st.booleans(),
)
def test_count_pairs(labels: list[int], others: list[int], sides: str, include_self: bool) -> None:
    apart = sides == "references"
    right = {"rows": labels, "references": others}.get(sides, labels + others)
    pairs = [
        (u, v)
        for u in range(len(labels))
        for v in range(len(right))
        if apart or include_self or u != v
    ]
    positives = [
        [v for v in range(len(right)) if right[v] == labels[u] and (apart or u != v)]
        for u in range(len(labels))
    ]
    expected = len(pairs), sum(labels[u] == right[v] for u, v in pairs)
    rows, references = (torch.tensor(x, dtype=torch.long) for x in (labels, others))
    described = Pairs.of(
        rows,
        None if sides == "rows" else references,
        with_rows=sides == "rows and references",
        anchors="with positives",
    )
    assert described.layout.count(include_self) == expected
    assert tuple(int(x) for x in described.layout.count_on_device(include_self)) == expected
    assert described.anchor_count() == max(sum(bool(columns) for columns in positives), 1)


def test_evenly_spaced_indices() -> None:
    assert evenly_spaced(10, 4).tolist() == [0, 2, 5, 7]
    assert evenly_spaced(3, 5).tolist() == [0, 1, 2]
    assert evenly_spaced(0, 5).tolist() == []


def test_the_longest_row() -> None:
    assert longest(torch.tensor([[3.0, 4.0], [0.0, 1.0]])) == 5
    assert longest(torch.zeros(0, 2)) == 0
