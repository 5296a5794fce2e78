from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scs_supcon.data.builtin import dataset_from_arrays, shapes
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.splits import (
    UNUSED,
    assign_folds,
    assign_splits,
    fold_splits,
    fold_training_images,
    keep_long_tail,
    keep_per_class,
    read_splits_csv,
    write_splits_csv,
)
from scs_supcon.errors import UserError


def images_of(labels: list[int], **columns: object) -> ImageDataset:
    classes = tuple(f"class {label:02d}" for label in range(max(labels) + 1))
    pixels = np.zeros((len(labels), 2, 2, 3), dtype=np.uint8)
    images = dataset_from_arrays("flat", pixels, np.array(labels), classes, {})
    return replace(images, **{name: np.array(value) for name, value in columns.items()})


def counts(images: ImageDataset, splits: np.ndarray) -> dict[int, tuple[int, int, int]]:
    return {
        label: tuple(
            int(np.sum(splits[images.labels == label] == split))
            for split in ("train", "val", "test")
        )
        for label in range(len(images.classes))
    }


def test_every_class_is_split_by_the_shares() -> None:
    images = shapes(per_class=40)
    splits = assign_splits(images, 0.1, 0.2, seed=0)
    assert set(counts(images, splits).values()) == {(28, 4, 8)}


def test_small_classes_keep_training_images() -> None:
    images = images_of([0] * 1 + [1] * 2 + [2] * 3 + [3] * 4 + [4] * 5 + [5] * 10)
    assert counts(images, assign_splits(images, 0.1, 0.2, seed=3)) == {
        0: (1, 0, 0),
        1: (1, 1, 0),
        2: (1, 1, 1),
        3: (2, 1, 1),
        4: (3, 1, 1),
        5: (7, 1, 2),
    }


def test_splits_depend_on_the_seed() -> None:
    images = shapes()
    first = assign_splits(images, 0.1, 0.2, seed=0)
    np.testing.assert_array_equal(first, assign_splits(images, 0.1, 0.2, seed=0))
    assert np.any(first != assign_splits(images, 0.1, 0.2, seed=1))


def test_given_splits_are_kept_and_validation_images_come_from_train() -> None:
    given = ["train"] * 20 + ["test"] * 5 + ["train"] * 2 + ["test"] + ["train"]
    images = images_of([0] * 25 + [1] * 3 + [2], splits=given)
    splits = assign_splits(images, 0.1, 0.2, seed=0)
    assert counts(images, splits) == {0: (18, 2, 5), 1: (1, 1, 1), 2: (1, 0, 0)}
    np.testing.assert_array_equal(splits == "test", np.array(given) == "test")

    full = [*given[:-2], "val", "train"]
    splits = assign_splits(replace(images, splits=np.array(full)), 0.1, 0.2, seed=0)
    np.testing.assert_array_equal(splits, full)


def test_a_training_split_alone_is_divided_like_a_plain_folder() -> None:
    images = images_of([0] * 10 + [1] * 10)
    only_train = replace(images, splits=np.array(["train"] * 20))
    np.testing.assert_array_equal(
        assign_splits(only_train, 0.1, 0.2, seed=0), assign_splits(images, 0.1, 0.2, seed=0)
    )


def test_a_share_of_zero_results_in_an_empty_split() -> None:
    splits = assign_splits(shapes(), 0.0, 0.25, seed=0)
    assert Counter(splits.tolist()) == {"train": 180, "test": 60}


@pytest.mark.parametrize("shares", [(-0.1, 0.2), (0.5, 0.5), (float("nan"), 0.1)])
def test_shares_must_leave_training_images(shares: tuple[float, float]) -> None:
    with pytest.raises(UserError, match="val_share"):
        assign_splits(shapes(), *shares, seed=0)


def test_a_single_class_is_an_error() -> None:
    with pytest.raises(UserError, match="only one class"):
        assign_splits(images_of([0, 0, 0]), 0.1, 0.2, seed=0)


def test_a_class_without_training_images_is_an_error() -> None:
    images = images_of([0, 0, 1, 1, 2], splits=["train", "train", "train", "val", "test"])
    with pytest.raises(UserError, match=r"'class 02' is in test but has no training image.*did"):
        assign_splits(images, 0.1, 0.2, seed=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["", "a", "b", "c", "d", "e", "f"])),
        min_size=2,
        max_size=60,
    ),
    st.integers(0, 9),
)
def test_groups_stay_together_and_every_class_has_training_images(
    rows: list[tuple[int, str]], seed: int
) -> None:
    present = sorted({label for label, _ in rows})
    assume(len(present) > 1)
    labels = [present.index(label) for label, _ in rows]
    images = images_of(labels, groups=[group for _, group in rows])
    splits = assign_splits(images, 0.1, 0.2, seed)
    for group in {group for _, group in rows} - {""}:
        assert len(set(splits[images.groups == group].tolist())) == 1
    for label in range(len(present)):
        train, val, _ = counts(images, splits)[label]
        assert train >= 1
        if "" not in {group for row_label, group in rows if row_label == present[label]}:
            continue
        ungrouped = np.sum((images.labels == label) & (images.groups == "") & (splits == "train"))
        assert val >= 1 or ungrouped == 0 or train == 1


def test_splits_of_equal_groups_are_close_to_the_shares() -> None:
    labels = np.repeat([0, 1], 100)
    groups = [f"{n // 5}" for n in range(200)]
    splits = assign_splits(images_of(labels.tolist(), groups=groups), 0.1, 0.2, seed=0)
    assert Counter(splits.tolist()) == {"train": 140, "val": 20, "test": 40}


def test_splits_of_mixed_groups_are_close_to_the_shares() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 20, 600)
    groups = [f"{group}" for group in np.minimum(rng.geometric(0.1, 600), 15)]
    images = images_of(labels.tolist(), groups=groups)
    for seed in range(5):
        splits = assign_splits(images, 0.1, 0.2, seed)
        shares = Counter(splits.tolist())
        assert 360 <= shares["train"] <= 480
        assert 30 <= shares["val"] <= 120
        assert all(val >= 1 for _, val, _ in counts(images, splits).values())


def test_groups_do_not_move_into_a_split_without_a_share() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        groups = [f"{group}" for group in rng.integers(0, 4, 60)]
        given = ["test"] * 10 + ["train"] * 50
        labels = [0, 1, 2] * 20
        images = images_of(labels, groups=groups, splits=given)
        splits = assign_splits(images, 0.1, 0.2, seed=0)
        np.testing.assert_array_equal(splits == "test", np.array(given) == "test")


def test_a_large_group_does_not_become_validation() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 300)
    groups = ["huge" if n < 180 else f"{n % 7}" for n in range(300)]
    images = images_of(labels.tolist(), groups=groups)
    for seed in range(5):
        shares = Counter(assign_splits(images, 0.1, 0.2, seed).tolist())
        assert shares["train"] >= 180
        assert shares["val"] >= 1


def test_a_class_in_one_group_stays_in_train() -> None:
    images = images_of([0] * 30 + [1] * 30, groups=["g"] * 30 + [""] * 30)
    splits = assign_splits(images, 0.1, 0.2, seed=0)
    assert set(splits[:30].tolist()) == {"train"}


def test_splits_are_read_as_written(tmp_path: Path) -> None:
    images = replace(
        shapes(per_class=5), groups=np.array(["g, 1", *[""] * 29]), folds=np.arange(30) % 5
    )
    splits = assign_splits(images, 0.1, 0.2, seed=0)
    path = tmp_path / "splits.csv"
    write_splits_csv(path, images, splits)
    first = path.read_bytes()
    write_splits_csv(path, images, splits)
    assert path.read_bytes() == first
    assert first.startswith(b"name,label,split,group,fold,sha256\nshapes/0001,bar,")
    assert b'"g, 1",0,' in first
    assert b"\r" not in first
    np.testing.assert_array_equal(read_splits_csv(path, images), splits)


def test_a_splits_file_of_other_data_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "splits.csv"
    small, large = shapes(per_class=2), shapes(per_class=3)
    write_splits_csv(path, small, assign_splits(small, 0.1, 0.2, seed=0))
    with pytest.raises(UserError, match=r"6 added \(.shapes/0013., …\).*12 changed.*another --out"):
        read_splits_csv(path, large)
    write_splits_csv(path, large, assign_splits(large, 0.1, 0.2, seed=0))
    with pytest.raises(UserError, match="6 removed"):
        read_splits_csv(path, small)
    path.write_text(path.read_text().replace(large.file_hash(3), "0" * 64))
    with pytest.raises(UserError, match=r": 1 changed \('shapes/0004'\)\. Restore"):
        read_splits_csv(path, large)
    path.write_text("x")
    with pytest.raises(UserError, match="is damaged: it has no column 'name'"):
        read_splits_csv(path, small)


def test_every_image_is_tested_once_and_classes_are_divided_evenly() -> None:
    images = images_of([0] * 13 + [1] * 7 + [2] * 20 + [3] * 2)
    folds = assign_folds(images, 5, seed=0)
    for label in range(4):
        sizes = np.bincount(folds[images.labels == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    sizes = np.bincount(folds, minlength=5)
    assert sizes.max() - sizes.min() <= 1
    splits = [fold_splits(images, fold, 5, 0.1, seed=0) for fold in range(5)]
    np.testing.assert_array_equal(sum(split == "test" for split in splits), np.ones(42))
    for fold, split in enumerate(splits):
        np.testing.assert_array_equal(split == "test", folds == fold)
        assert {"train", "val"} <= set(split.tolist())
        assert set(images.labels[split == "train"]) == {0, 1, 2, 3}


def test_folds_depend_on_the_seed() -> None:
    images = shapes(per_class=10)
    first = assign_folds(images, 5, seed=0)
    np.testing.assert_array_equal(first, assign_folds(images, 5, seed=0))
    assert np.any(first != assign_folds(images, 5, seed=1))


def test_folds_keep_groups_together() -> None:
    labels = [label for label in range(3) for _ in range(20)]
    groups = [f"{label}-{number // 3}" for label in range(3) for number in range(20)]
    images = images_of(labels, groups=groups)
    folds = assign_folds(images, 4, seed=0)
    assert all(len(set(folds[np.array(groups) == group])) == 1 for group in set(groups))
    for label in range(3):  # seven groups of a class go to four folds
        assert np.bincount(folds[images.labels == label], minlength=4).min() >= 2
    splits = fold_splits(images, 2, 4, 0.2, seed=0)
    assert all(len(set(splits[np.array(groups) == group])) == 1 for group in set(groups))


def test_a_fold_column_takes_precedence_and_given_splits_are_not_used() -> None:
    given = [3, 1, 2] * 4
    images = images_of([0] * 6 + [1] * 6, folds=given, splits=["train"] * 11 + ["test"])
    np.testing.assert_array_equal(assign_folds(images, 3, seed=0), np.array(given) - 1)
    with pytest.raises(UserError, match="has 3 folds, but --folds is 5: use --folds 3"):
        assign_folds(images, 5, seed=0)


@pytest.mark.parametrize(
    ("labels", "folds", "message"),
    [
        ([0] * 6 + [1], 2, "all images of class 'class 01' are in one fold"),
        ([0] * 3 + [1] * 3, 1, "between 2 and the number of images .6., got 1"),
        ([0] * 3 + [1] * 3, 7, "between 2 and the number of images .6., got 7"),
    ],
)
def test_the_number_of_folds_must_fit_the_data(labels, folds, message) -> None:
    with pytest.raises(UserError, match=message):
        assign_folds(images_of(labels), folds, seed=0)


def test_folds_of_a_single_class_are_an_error() -> None:
    with pytest.raises(UserError, match="only one class"):
        fold_splits(images_of([0] * 6), 0, 3, 0.1, seed=0)


def test_few_images_per_class_leave_the_test_images_alone() -> None:
    images = images_of([0] * 40 + [1] * 25 + [2] * 5)
    before = fold_splits(images, 1, 5, 0.1, seed=0)
    after = keep_per_class(images.labels, before, 10, 0.1, seed=0)
    np.testing.assert_array_equal(after == "test", before == "test")
    np.testing.assert_array_equal(after[after != "unused"], before[after != "unused"])
    assert counts(images, after) == {0: (9, 1, 8), 1: (9, 1, 5), 2: (3, 1, 1)}
    np.testing.assert_array_equal(after, keep_per_class(images.labels, before, 10, 0.1, seed=0))
    assert (after != keep_per_class(images.labels, before, 10, 0.1, seed=1)).any()


def test_fewer_images_per_class_are_a_part_of_more() -> None:
    images = images_of([0] * 40 + [1] * 25)
    splits = assign_splits(images, 0.2, 0.2, seed=0)
    kept = [set()] + [
        set(np.flatnonzero(keep_per_class(images.labels, splits, n, 0.2, seed=0) != "unused"))
        for n in (2, 5, 10, 100)
    ]
    assert all(few < more for few, more in pairwise(kept))
    assert kept[-1] == set(range(len(images)))


def test_folds_of_the_training_images_leave_out_the_test_images() -> None:
    given = ["test" if number % 4 == 0 else "train" for number in range(48)]
    images = images_of([number // 16 for number in range(48)], splits=given)
    splits = [fold_training_images(images, fold, 3, 0.1, seed=0) for fold in range(3)]
    test = np.array(given) == "test"
    for split in splits:
        np.testing.assert_array_equal(split == UNUSED, test)
    tested = sum((split == "test").astype(int) for split in splits)
    np.testing.assert_array_equal(tested, (~test).astype(int))
    without = images_of(images.labels.tolist())
    np.testing.assert_array_equal(
        fold_training_images(without, 1, 3, 0.1, seed=0), fold_splits(without, 1, 3, 0.1, seed=0)
    )


def test_a_long_tail_has_the_stated_profile():
    labels = np.repeat(np.arange(5), 130)
    splits = np.tile(np.array(["train"] * 100 + ["val"] * 10 + ["test"] * 20), 5)
    kept = keep_long_tail(labels, splits, 100.0, seed=0)
    counts = [int(((kept == "train") & (labels == label)).sum()) for label in range(5)]
    assert counts == [int(100 * 100 ** (-label / 4) + 1e-9) for label in range(5)]
    assert counts == [100, 31, 10, 3, 1]
    for split in ("val", "test"):
        assert np.array_equal(kept == split, splits == split)
    assert set(kept[(splits == "train") & (kept != "train")]) == {"unused"}
    assert np.array_equal(kept, keep_long_tail(labels, splits, 100.0, seed=0))
    assert not np.array_equal(kept, keep_long_tail(labels, splits, 100.0, seed=1))
    assert np.array_equal(keep_long_tail(labels, splits, 1.0, seed=0), splits)


def test_a_long_tail_of_unequal_classes_keeps_at_least_one_image():
    labels = np.array([0] * 10 + [1] * 2 + [2] * 40)
    kept = keep_long_tail(labels, np.full(52, "train"), 1000.0, seed=0)
    assert [int(((kept == "train") & (labels == k)).sum()) for k in range(3)] == [10, 1, 1]
