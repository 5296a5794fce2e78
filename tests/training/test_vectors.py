"""Both stages on vectors: what the recipe becomes, and what is learned."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_blobs

from scs_supcon.training.probe import with_own_classifier
from scs_supcon.training.vectors import resolve_vector_recipe, train_on_vectors

QUICK = {
    "pretrain": {"epochs": 10, "warmup_epochs": 1.0},
    "probe": {"epochs": 10},
    "head": {"common_dim": 16, "style_dim": 8, "hidden": 32},
}


def learned(vectors, labels, seed=0, asked=QUICK):
    recipe = resolve_vector_recipe(labels, vectors.shape[1], seed, asked)
    return train_on_vectors(vectors, labels, recipe)


def test_what_is_asked_for_wins_over_what_suits():
    labels = np.arange(40) % 4
    plain = resolve_vector_recipe(labels, 10, 7, {})
    assert (plain.seed, plain.encoder.frozen_dropout, plain.pretrain.batch_size) == (7, 0.0, 40)
    assert resolve_vector_recipe(labels, 512, 7, {}).encoder.frozen_dropout == 0.5
    asked = resolve_vector_recipe(
        labels, 10, 7, {"pretrain": {"lr": 0.5}, "method": {"name": "supcon"}}
    )
    assert (asked.pretrain.lr, asked.method.name, asked.head.centre) == (0.5, "supcon", False)


def test_what_a_row_gets_does_not_depend_on_the_rows_beside_it():
    vectors, labels = make_blobs(60, 4, centers=3, random_state=0)
    model = learned(vectors, labels)
    features = model.features(vectors)
    whole = model.decide(features).probabilities
    alone = torch.cat([model.decide(features[k : k + 1]).probabilities for k in range(60)])
    assert torch.equal(whole, alone)


def test_scale_and_shift_of_columns_change_next_to_nothing():
    vectors, labels = make_blobs(60, 4, centers=3, random_state=0)
    first = learned(vectors, labels)
    moved = vectors * [1, 10, 1e3, 1e-3] + [0, 5, -100, 1]
    second = learned(moved, labels)
    chances = [
        m.decide(m.features(x)).probabilities for m, x in ((first, vectors), (second, moved))
    ]
    assert torch.allclose(*chances, atol=1e-3)


@pytest.mark.parametrize("rows", [2, 3])
def test_one_vector_for_each_class_is_enough_to_go_through(rows):
    model = learned(np.eye(rows), np.arange(rows))
    assert model.decide(model.features(np.eye(rows))).probabilities.argmax(1).tolist() == list(
        range(rows)
    )


def test_the_method_s_own_classifier_is_used():
    vectors, labels = make_blobs(120, 4, centers=3, random_state=0)
    recipe = resolve_vector_recipe(labels, 4, 0, QUICK | {"method": {"name": "circle"}})
    own = []

    def record(probe, weights, val, val_labels):
        own.append(with_own_classifier(probe, weights, val, val_labels))
        return own[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scs_supcon.training.vectors.with_own_classifier", record)
        model = train_on_vectors(vectors, labels, recipe)
    assert torch.equal(model.classifier.rule.weight, own[0].classifier.weight)


@pytest.mark.slow
def test_digits_as_plain_vectors():
    vectors, labels = load_digits(return_X_y=True)
    model = learned(vectors[:1200], labels[:1200], asked={"pretrain": {"epochs": 15}})
    found = model.decide(model.features(vectors[1200:])).probabilities.argmax(1).numpy()
    assert (found == labels[1200:]).mean() > 0.9
