"""The estimator follows the conventions of scikit-learn, on vectors and on images."""

import pickle

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import scs_supcon
from scs_supcon.data.builtin import shapes
from scs_supcon.errors import UserError

SMALL = ("probe.epochs=10", "head.common_dim=16", "head.style_dim=8", "head.hidden=32")


def small(**options):
    """Return an estimator that trains in a fraction of a second."""
    return scs_supcon.ContrastiveClassifier(**({"epochs": 10, "settings": SMALL} | options))


@parametrize_with_checks([small()])
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def images():
    images = shapes(per_class=8)
    pixels = np.stack([np.asarray(images.open(k).resize((16, 16))) for k in range(len(images))])
    names = np.array(images.classes)[images.labels]
    return pixels, names


def test_vectors_are_classified_with_labels_of_text():
    vectors, labels = make_blobs(120, 5, centers=3, cluster_std=1.0, random_state=0)
    names = np.array(["oak", "ash", "elm"])[labels]
    fitted = small().fit(vectors[:90], names[:90])
    assert list(fitted.classes_) == ["ash", "elm", "oak"]
    assert fitted.score(vectors[90:], names[90:]) >= 0.95
    probabilities = fitted.predict_proba(vectors[90:])
    assert probabilities.shape == (30, 3)
    assert np.allclose(probabilities.sum(1), 1)


def test_transform_returns_unit_vectors_that_are_close_within_a_class(iris):
    vectors, labels = iris
    common = small().fit(vectors, labels).transform(vectors)
    assert common.shape == (150, 16)
    assert np.allclose((common**2).sum(1), 1)
    similarities = common @ common.T
    same = labels[:, None] == labels
    assert similarities[same].mean() > similarities[~same].mean() + 0.5


def test_the_result_depends_on_the_seed_only(iris):
    first, same, other = (
        small(random_state=seed).fit(*iris).predict_proba(iris[0]) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_the_estimator_works_in_a_pipeline(iris):
    vectors, labels = iris
    last = make_pipeline(StandardScaler(), small())
    assert cross_val_score(last, vectors, labels, cv=3).mean() > 0.9
    first = make_pipeline(small(), LogisticRegression())
    assert first.fit(vectors, labels).score(vectors, labels) > 0.9


def test_a_grid_search_varies_methods_and_settings(iris):
    grid = {"method": ["scs_supcon", "supcon"], "settings": [SMALL, (*SMALL, "pretrain.lr=0.05")]}
    search = GridSearchCV(small(epochs=3), grid, cv=2).fit(*iris)
    assert search.best_score_ > 0.8
    assert len(search.cv_results_["params"]) == 4


def test_a_clone_is_not_fitted(iris):
    fitted = small(method="supcon").fit(*iris)
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    assert not hasattr(fresh, "model_")


@pytest.mark.parametrize("method", ["supcon", "baseline", "scs_supcon@paper"])
def test_other_methods_can_be_used(method, iris):
    assert small(method=method).fit(*iris).score(*iris) > 0.6


def test_a_constant_column_is_ignored(iris):
    vectors = np.column_stack([iris[0], np.full(150, 3.0)])
    assert small().fit(vectors, iris[1]).score(vectors, iris[1]) > 0.9


@pytest.mark.slow
def test_images_are_classified_and_the_model_can_be_pickled(images):
    pixels, names = images
    fitted = small(epochs=2, settings=("probe.epochs=2", "probe.views=1")).fit(pixels, names)
    assert list(fitted.classes_) == sorted(set(names))
    assert set(fitted.predict(pixels)) <= set(names)
    fused = 128 + 192  # whitened features and common field
    assert fitted.transform(pixels).shape == (len(pixels), fused)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(pixels[:5]), fitted.predict_proba(pixels[:5]))


@pytest.mark.slow
def test_files_grey_arrays_and_lists_are_images_too(images, tmp_path):
    pixels, names = images
    grey = np.asarray(pixels.mean(3), np.uint8)
    files = [tmp_path / f"{number:02d}.png" for number in range(len(grey))]
    for file, image in zip(files, grey, strict=True):
        Image.fromarray(image).save(file)
    fitted = small(epochs=1, settings=("probe.epochs=2", "probe.views=1")).fit(grey, names)
    expected = fitted.predict_proba(grey)
    for same in (files, [str(file) for file in files], np.array([str(file) for file in files])):
        assert np.array_equal(fitted.predict_proba(same), expected)
    assert np.array_equal(fitted.predict_proba([Image.open(file) for file in files]), expected)
    assert np.array_equal(fitted.predict_proba([*grey]), expected)
    again = clone(fitted).fit(files, names)
    assert again.predict_proba(files).shape == expected.shape
    assert set(again.predict(files)) <= set(names)
    with pytest.raises(UserError, match="must be images as in fit"):
        fitted.predict(np.zeros((4, 9)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((4, 8, 8, 2), np.uint8), "one image per item, got 32 in 4 items"),
        (np.zeros((4, 8, 8, 3), int), "got int64"),
        (["gone.png"] * 4, r"gone\.png does not exist"),
        ("photos", "must be a list of images, got 'photos'"),
    ],
)
def test_images_of_another_shape_or_type_are_an_error(wrong, message):
    with pytest.raises(UserError, match=message):
        small().fit(wrong, [0, 0, 1, 1])


def test_invalid_options_are_an_error(iris):
    with pytest.raises(UserError, match="did you mean 'supcon'"):
        small(method="supcom").fit(*iris)
    with pytest.raises(UserError, match="did you mean 'lr'"):
        small(settings=["pretrain.lrr=1"]).fit(*iris)
    with pytest.raises(UserError, match="only one class"):
        small().fit(iris[0][:50], iris[1][:50])
