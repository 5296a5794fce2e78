"""Both stages on vectors: the recipe, and the trained model."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_blobs

from scs_supcon.evaluation.leakage import purity
from scs_supcon.training.probe import choose_classifier
from scs_supcon.training.vectors import resolve_vector_recipe, train_on_vectors

QUICK = {
    "pretrain": {"epochs": 10, "warmup_epochs": 1.0},
    "probe": {"epochs": 10},
    "head": {"common_dim": 16, "style_dim": 8, "hidden": 32},
}


def fit(vectors, labels, seed=0, requested=QUICK):
    recipe = resolve_vector_recipe(labels, vectors.shape[1], seed, requested)
    return train_on_vectors(vectors, labels, recipe)


def test_requested_values_win_over_defaults():
    labels = np.arange(40) % 4
    default = resolve_vector_recipe(labels, 10, 7, {})
    assert (default.seed, default.encoder.frozen_dropout, default.pretrain.batch_size) == (
        7,
        0.0,
        40,
    )
    assert resolve_vector_recipe(labels, 512, 7, {}).encoder.frozen_dropout == 0.5
    requested = resolve_vector_recipe(
        labels, 10, 7, {"pretrain": {"lr": 0.5}, "method": {"name": "supcon"}}
    )
    assert (requested.pretrain.lr, requested.method.name, requested.head.centre) == (
        0.5,
        "supcon",
        True,
    )


def test_methods_without_labels_get_shuffled_batches_of_vectors():
    labels = np.arange(40) % 20
    for name, kind in (("supcon", "balanced"), ("simclr", "shuffle")):
        requested = {"method": {"name": name}, "pretrain": {"batch_size": 8}}
        assert resolve_vector_recipe(labels, 10, 0, requested).pretrain.batches == kind


def test_a_prediction_does_not_depend_on_the_other_rows():
    vectors, labels = make_blobs(60, 4, centers=3, random_state=0)
    model = fit(vectors, labels)
    features = model.features(vectors)
    whole = model.decide(features).probabilities
    alone = torch.cat([model.decide(features[k : k + 1]).probabilities for k in range(60)])
    assert torch.equal(whole, alone)


def test_scale_and_shift_of_columns_hardly_matter():
    vectors, labels = make_blobs(60, 4, centers=3, random_state=0)
    first = fit(vectors, labels)
    moved = vectors * [1, 10, 1e3, 1e-3] + [0, 5, -100, 1]
    second = fit(moved, labels)
    probabilities = [
        m.decide(m.features(x)).probabilities for m, x in ((first, vectors), (second, moved))
    ]
    assert torch.allclose(*probabilities, atol=1e-3)


def test_a_fitted_style_field_tells_less_about_the_class():
    vectors, labels = load_digits(return_X_y=True)
    purities = {}
    for style in ("trained", "fitted"):
        model = fit(vectors, labels, requested=QUICK | {"head": QUICK["head"] | {"style": style}})
        _, field = model.fields(model.features(vectors))
        purities[style] = purity(field, torch.from_numpy(labels))
    assert purities["fitted"] < 0.8 * purities["trained"]


def test_a_method_without_fields_can_have_a_fitted_style_field():
    vectors, labels = make_blobs(60, 4, centers=3, random_state=0)
    head = QUICK["head"] | {"style": "fitted"}
    model = fit(vectors, labels, requested=QUICK | {"head": head, "method": {"name": "supcon"}})
    common, style = model.fields(model.features(vectors))
    assert (common.shape, style.shape) == ((60, 16), (60, 8))


@pytest.mark.parametrize("rows", [2, 3])
def test_one_vector_per_class_is_enough(rows):
    model = fit(np.eye(rows), np.arange(rows))
    assert model.decide(model.features(np.eye(rows))).probabilities.argmax(1).tolist() == list(
        range(rows)
    )


@pytest.mark.parametrize(("name", "probe_input"), [("circle", "embeddings"), ("paco", "features")])
def test_the_classifier_of_the_method_is_used(name, probe_input):
    vectors, labels = make_blobs(120, 4, centers=3, random_state=0)
    schedule = {"pretrain": {"epochs": 60}, "method": {"name": name}}
    recipe = resolve_vector_recipe(labels, 4, 0, QUICK | schedule)
    selected = []

    def record(*arguments):
        selected.append(choose_classifier(*arguments))
        return selected[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scs_supcon.training.vectors.choose_classifier", record)
        model = train_on_vectors(vectors, labels, recipe)
    ((chosen, chosen_input),) = selected
    assert chosen.own
    assert model.classifier.probe_inputs.probe_input == chosen_input == probe_input
    assert torch.equal(model.classifier.rule.weight, chosen.classifier.weight)


@pytest.mark.slow
def test_digits_as_vectors_reach_90_percent():
    vectors, labels = load_digits(return_X_y=True)
    model = fit(vectors[:1200], labels[:1200], requested={"pretrain": {"epochs": 15}})
    predicted = model.decide(model.features(vectors[1200:])).probabilities.argmax(1).numpy()
    assert (predicted == labels[1200:]).mean() > 0.9
