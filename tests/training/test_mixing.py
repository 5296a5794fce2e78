"""MixUp and CutMix."""

import numpy as np
import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.methods import Batch
from scs_supcon.recipe import make_recipe
from scs_supcon.training.mixing import mix_batch
from scs_supcon.training.train import resolved_recipe

B, VIEWS, CLASSES = 5, 2, 4
LABELS = torch.tensor([0, 1, 2, 2, 0])


def batch(*shape):
    """Return a batch in which every number is the number of its image, plus 10 in view 2."""
    values = torch.cat([torch.arange(B) + 10.0 * view for view in range(VIEWS)])
    images = values.view(-1, *[1] * len(shape)).expand(-1, *shape).clone()
    return Batch(images, LABELS, torch.arange(B) + 100)


def mix(made, key=(0, 0, 0), mixup=0.0, cutmix=0.0):
    return mix_batch(made, CLASSES, mixup=mixup, cutmix=cutmix, key=key)


@pytest.mark.parametrize("seed", range(10))
def test_mixup_blends_images_and_labels_in_the_same_proportion(seed):
    mixed = mix(batch(3, 4, 4), (seed, 1, 2), mixup=1.0)
    rng = np.random.default_rng((seed, 1, 2))
    share = rng.beta(1.0, 1.0)
    share = max(share, 1 - share)
    partner = rng.permutation(B)
    for view in range(VIEWS):
        for row in range(B):
            expected = share * row + (1 - share) * partner[row] + 10 * view
            image = mixed.images[view * B + row]
            assert torch.allclose(image, torch.tensor(expected, dtype=image.dtype), atol=1e-5)
    for row in range(B):
        expected = [0.0] * CLASSES
        expected[LABELS[row]] += share
        expected[LABELS[partner[row]]] += 1 - share
        assert mixed.label_probabilities[row].tolist() == pytest.approx(expected)
    assert torch.equal(mixed.labels, LABELS)
    assert torch.equal(mixed.indices, torch.arange(B) + 100)


@pytest.mark.parametrize("seed", range(10))
def test_cutmix_pastes_a_rectangle_whose_area_is_the_weight_of_the_other_label(seed):
    mixed = mix(batch(3, 8, 6), (seed,), cutmix=1.0)
    labels = [0.0] * CLASSES
    for row in range(B):
        first = mixed.images[row]
        second = mixed.images[B + row] - 10
        assert torch.equal(first, second), "the same partner and rectangle in both views"
        assert torch.equal(first[0], first[1])
        values = sorted({row, *first.unique().tolist()})
        assert len(values) <= 2
        others = [int(value) for value in values if value != row]
        own = float((first[0] == row).double().mean())
        labels = [0.0] * CLASSES
        labels[LABELS[row]] += own
        labels[LABELS[others[0]] if others else LABELS[row]] += 1 - own
        if others or own == 1:
            pasted = first[0] != row
            rows, columns = pasted.any(1), pasted.any(0)
            assert pasted.sum() == rows.sum() * columns.sum(), "a rectangle"
        assert mixed.label_probabilities[row].tolist() == pytest.approx(labels, abs=1e-6)


def test_the_label_is_that_of_the_larger_part():
    for seed in range(50):
        for settings in ({"mixup": 0.3}, {"cutmix": 0.3}):
            soft = mix(batch(3, 8, 8), (seed,), **settings).label_probabilities
            assert (soft.gather(1, LABELS[:, None]) >= 0.5).all()
            assert torch.allclose(soft.sum(1), torch.ones(B))


def test_with_both_each_batch_uses_one_of_them():
    kinds = set()
    for seed in range(40):
        images = mix(batch(3, 8, 8), (seed,), mixup=1.0, cutmix=1.0).images
        kinds.add("cutmix" if torch.equal(images, images.round()) else "mixup")
    assert kinds == {"mixup", "cutmix"}


def test_mixing_depends_on_the_key_only():
    first, same, other = (mix(batch(3, 4, 4), (0, n, 0), mixup=1.0) for n in (1, 1, 2))
    assert torch.equal(first.images, same.images)
    assert not torch.equal(first.images, other.images)
    state = torch.get_rng_state()
    mix(batch(3, 4, 4), mixup=1.0)
    assert torch.equal(state, torch.get_rng_state())


def test_features_can_be_mixed():
    mixed = mix(batch(7), mixup=1.0)
    assert mixed.images.shape == (VIEWS * B, 7)


def test_one_image_is_its_own_partner():
    single = Batch(torch.ones(2, 3, 4, 4), torch.tensor([1]), torch.tensor([0]))
    for settings in ({"mixup": 1.0}, {"cutmix": 1.0}):
        mixed = mix(single, **settings)
        assert torch.allclose(mixed.images, single.images)
        assert mixed.label_probabilities.tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize(
    "settings",
    [
        ["pretrain.mixup=0.4"],
        ["pretrain.cutmix=1"],
        ["pretrain.mixup=0.4", "pretrain.cutmix=1"],
    ],
)
def test_a_stopped_run_with_mixed_images_ends_with_the_same_bytes(
    settings, shapes, train_small, tmp_path, train_stopped, deterministic_files
):
    options = {"settings": settings, "method": "baseline"}
    whole = train_small(shapes, tmp_path / "whole", **options)
    train_stopped(shapes, tmp_path / "run", step=2, **options)
    train_small(shapes, tmp_path / "run", **options)
    assert deterministic_files(tmp_path / "run") == deterministic_files(whole.path)


def test_cached_features_are_blended_but_not_cut(shapes, weights, train_small, tmp_path):
    options = {"encoder": "tiny", "weights": weights, "frozen": True, "method": "baseline"}
    train_small(shapes, tmp_path / "run", ["pretrain.mixup=0.4"], **options)
    with pytest.raises(UserError, match=r"pretrain\.cutmix cuts images"):
        train_small(shapes, tmp_path / "other", ["pretrain.cutmix=1"], **options)


def test_a_method_without_soft_labels_is_an_error_before_the_run_starts(
    shapes, train_small, tmp_path
):
    with pytest.raises(UserError, match="cannot use the soft labels of mixed images"):
        train_small(shapes, tmp_path / "run", ["pretrain.mixup=0.4"], method="byol")
    assert not (tmp_path / "run").exists()


def test_unfreezing_has_smaller_batches(weights, tmp_path):
    options = {"encoder": "tiny", "weights": weights, "device": "cpu"}
    assert resolved_recipe("digits", frozen=True, **options).pretrain.batch_size == 256
    assert resolved_recipe("digits", unfreeze=True, **options).pretrain.batch_size == 64
    assert make_recipe({"data": {"source": "x"}}).pretrain.mixup == 0
