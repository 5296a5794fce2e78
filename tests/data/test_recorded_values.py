"""Splits, batches and views are the same as in version 0.1, so that its runs can be resumed."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from scs_supcon.data.audit import keep_duplicates_together
from scs_supcon.data.builtin import digits
from scs_supcon.data.dataset import ImageDataset, Problem, content_digest
from scs_supcon.data.sampler import batch_keys, choose_batches, plan_epoch
from scs_supcon.data.splits import assign_folds, assign_splits, fold_splits
from scs_supcon.data.transforms import ViewDataset, eval_view, probe_view, train_view
from scs_supcon.recipe import DataRecipe

LABELS = np.repeat(np.arange(12), np.arange(1, 13))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.fixture(scope="module")
def images() -> ImageDataset:
    return digits()


@pytest.fixture(scope="module")
def grouped(images: ImageDataset) -> ImageDataset:
    groups = [f"g{index // 3}" if index % 2 else "" for index in range(len(images))]
    return replace(images, groups=np.array(groups))


def test_the_content_digest_is_unchanged(images: ImageDataset) -> None:
    assert content_digest(images)[:16] == "8cac33b347b1119b"


def test_splits_are_unchanged(images: ImageDataset, grouped: ImageDataset) -> None:
    assert digest("".join(assign_splits(images, 0.1, 0.2, 0))) == "8bcbdfd90fd96769"
    assert digest("".join(assign_splits(grouped, 0.1, 0.2, 3))) == "0e438fae1831d262"
    assert digest("".join(fold_splits(grouped, 2, 5, 0.1, 1))) == "bd65bf24423b8402"


def test_folds_are_unchanged(images: ImageDataset, grouped: ImageDataset) -> None:
    assert digest(",".join(map(str, assign_folds(images, 5, 0)))) == "1cb489fa59677a7c"
    assert digest(",".join(map(str, assign_folds(grouped, 5, 7)))) == "837abf0e0c9627f0"


def test_groups_of_duplicates_have_unchanged_names(images: ImageDataset) -> None:
    problems = [
        Problem("duplicate", images.names[5], "", images.names[2]),
        Problem("duplicate", images.names[9], "", images.names[5]),
    ]
    groups = keep_duplicates_together(images, problems).groups
    assert groups is not None
    assert groups[[2, 5, 9]].tolist() == ["same as digits/0003"] * 3


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("shuffle", "147b3af3d41783f9"),
        ("balanced", "e12393b350dc92a9"),
        ("long_tail", "4904cb5fed31acdd"),
    ],
)
def test_batches_are_unchanged(kind, expected: str) -> None:
    plan = plan_epoch(LABELS, 16, kind=kind, per_class=2, seed=3, epoch=2, world=2)
    assert digest(json.dumps([[rank.tolist() for rank in batch] for batch in plan])) == expected
    if kind == "long_tail":
        assert digest(json.dumps(batch_keys(plan, 2, 1, 1))) == "466f2e826e28c651"


def test_the_choice_of_batches_is_unchanged() -> None:
    assert choose_batches(np.repeat(np.arange(200), 30), 96) == ("balanced", 4)
    assert choose_batches(np.repeat(np.arange(4), 30), 32) == ("shuffle", 4)


@pytest.mark.parametrize(
    ("view", "mean", "std", "pixels"),
    [
        (train_view, -0.457196, 1.399367, [-2.1179, -2.1179, -1.05035, 0.34057]),
        (probe_view, -0.373916, 1.634076, [-2.1179, -1.65554, -0.18281, 1.03305]),
        (eval_view, -0.474054, 1.580713, [-2.1179, -2.1179, -2.1179, -2.1179]),
    ],
)
def test_views_are_unchanged(
    images: ImageDataset, view, mean: float, std: float, pixels: list[float]
) -> None:
    recipe = DataRecipe(source="digits", image_size=12, rotate=20.0, interpolation="bicubic")
    dataset = ViewDataset(images, range(10, 60), view(recipe), n_views=2, seed=5)
    views = torch.stack([dataset[(1, position, 0)][0] for position in range(8)])
    assert float(views.mean()) == pytest.approx(mean, abs=1e-5)
    assert float(views.std()) == pytest.approx(std, abs=1e-5)
    assert views[3, 1, 0, 5, :4].tolist() == pytest.approx(pixels, abs=2e-5)
