import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scs_supcon.kernels.layout import Rows, Tile, members, same_class_pairs, sort_rows, tiles

label_lists = st.lists(st.integers(-3, 3), max_size=14)


def rows_of(labels: list[int], own: list[int] | None = None) -> Rows:
    where = None if own is None else torch.tensor(own, dtype=torch.long)
    return Rows(torch.tensor(sorted(labels), dtype=torch.long), where)


def pairs_in(tile: Tile) -> list[tuple[int, int]]:
    return [
        (u, v)
        for u in range(tile.rows.start, tile.rows.stop)
        for v in range(tile.columns.start, tile.columns.stop)
    ]


@given(label_lists)
def test_rows_are_sorted_by_label_and_equal_labels_keep_their_order(labels: list[int]) -> None:
    numbers = torch.arange(len(labels), dtype=torch.float64)[:, None]
    rows, order = sort_rows(numbers, torch.tensor(labels, dtype=torch.long))
    expected = sorted(range(len(labels)), key=lambda k: labels[k])
    assert rows[:, 0].tolist() == expected
    assert order.labels.tolist() == sorted(labels)
    assert len(order) == len(labels)


def test_gradients_go_back_to_the_rows_they_came_from() -> None:
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    rows, _ = sort_rows(x, torch.tensor([4, 1, 3, 0, 2]))
    weights = torch.arange(5.0, dtype=torch.float64)[:, None]
    (rows * weights).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [4, 1, 3, 0, 2]


@given(label_lists, st.integers(1, 6))
def test_tiles_of_rows_among_themselves_hold_every_pair_once(labels: list[int], size: int) -> None:
    rows = rows_of(labels)
    seen: list[tuple[int, int]] = []
    for tile in tiles(rows, None, size):
        here = pairs_in(tile)
        seen += here if tile.diagonal else here + [(v, u) for u, v in here]
        assert tile.diagonal == any(u == v for u, v in here)
    n = len(labels)
    assert sorted(seen) == [(u, v) for u in range(n) for v in range(n)]


@given(label_lists, label_lists, st.integers(1, 6))
def test_tiles_against_references_hold_every_pair_once(
    labels: list[int], others: list[int], size: int
) -> None:
    seen = [p for tile in tiles(rows_of(labels), rows_of(others), size) for p in pairs_in(tile)]
    assert sorted(seen) == [(u, v) for u in range(len(labels)) for v in range(len(others))]


@given(label_lists, label_lists, st.booleans(), st.integers(1, 6))
def test_classmates_are_only_where_a_tile_says(
    labels: list[int], others: list[int], apart: bool, size: int
) -> None:
    rows = rows_of(labels)
    columns = rows_of(others) if apart else None
    for tile in tiles(rows, columns, size):
        across = rows.labels[tile.rows, None] == (columns or rows).labels[None, tile.columns]
        if tile.same is not None:
            assert not tile.uniform or bool(across[tile.same].all())
            across[tile.same] = False
        assert not across.any()


def test_most_tiles_need_no_mask() -> None:
    found = list(tiles(rows_of([0] * 4 + [1] * 4), None, 2))
    assert sum(tile.same is None for tile in found) == 4
    assert sum(tile.uniform for tile in found) == 6


@given(label_lists, label_lists)
def test_counts(labels: list[int], others: list[int]) -> None:
    rows, columns = rows_of(labels), rows_of(others)
    assert same_class_pairs(rows) == sum(x == y for x in labels for y in labels)
    assert same_class_pairs(rows, columns) == sum(x == y for x in labels for y in others)
    assert members(rows.labels, columns).tolist() == [others.count(x) for x in sorted(labels)]
    classes, counts = rows.counts
    assert classes.tolist() == sorted(set(labels))
    assert counts.tolist() == [labels.count(x) for x in sorted(set(labels))]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_gathered_rows_know_where_a_tile_holds_their_own_pairs(size: int) -> None:
    everyone = rows_of([0, 0, 0, 1, 1, 2, 2], own=[1, 3, 6])
    mine = rows_of([0, 1, 2])
    found = []
    for tile in tiles(mine, everyone, size):
        place = everyone.place(tile)
        assert place is not None
        row, column = place
        found += [
            (tile.rows.start + int(r), tile.columns.start + int(c))
            for r, c in zip(row, column, strict=True)
        ]
    assert sorted(found) == [(0, 1), (1, 3), (2, 6)]


def test_rows_that_were_not_gathered_have_no_such_place() -> None:
    rows = rows_of([0, 1])
    assert [rows.place(tile) for tile in tiles(rows, rows, 2)] == [None]
