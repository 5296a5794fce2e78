"""Models whose common field is fused with whitened features."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from scs_supcon.data.builtin import digits
from scs_supcon.inference import Model, load
from scs_supcon.inference.decision import FusedField, in_passes
from scs_supcon.inference.onnx import export_onnx
from scs_supcon.nn.head import Projection, ProjectionHeads
from scs_supcon.recipe import HeadRecipe
from scs_supcon.training.features import SplitFeatures
from scs_supcon.training.fusion import fuse_fields

Trained = Callable[..., Any]


@pytest.fixture(scope="module")
def parts(trained: Trained) -> Any:
    return trained(known=8)


@pytest.fixture
def model(parts: Any) -> Model:
    return build(parts)


def build(parts: Any) -> Model:
    """Return a fused model with three heads: the trained one and two that are not."""
    arguments = parts.arguments
    recipe = arguments["recipe"]
    torch.manual_seed(0)
    width = len(arguments["train"][0][0])
    heads = ProjectionHeads(
        [arguments["projection"], *(Projection(width, recipe.head.dim, centre=True) for _ in "ab")]
    ).eval()
    head = HeadRecipe(**recipe.head.model_dump() | {"heads": 3})
    fusion = recipe.fusion.model_copy(update={"whitened": True, "directions": 40, "folds": 0})
    recipe = recipe.model_copy(update={"head": head, "fusion": fusion})
    features = {name: split(*arguments[name]) for name in ("train", "val")}
    fused, probe = fuse_fields(heads, "common", features, 8, recipe, None)
    assert isinstance(fused, FusedField)
    return parts.model(recipe=recipe, projection=heads, classifier=probe.classifier, fused=fused)


def split(features: torch.Tensor, labels: torch.Tensor) -> SplitFeatures:
    indices = np.arange(len(labels))
    return SplitFeatures(indices, labels, features[:, None], features[:, None])


def test_a_saved_model_gives_the_same_bits(model: Model, parts: Any, tmp_path) -> None:
    model.save(tmp_path)
    loaded = load(tmp_path)
    assert loaded.info == model.info
    features = model.features(parts.test[:80])
    for actual, expected in zip(loaded.decide(features), model.decide(features), strict=True):
        assert torch.equal(actual, expected)
    for actual, expected in zip(loaded.fields(features), model.fields(features), strict=True):
        assert torch.equal(actual, expected)
    assert loaded.neighbours(parts.test[0]) == model.neighbours(parts.test[0])


def test_predictions_are_right_and_few_known_images_are_rejected(model: Model, parts: Any) -> None:
    predictions, _ = model.predict(parts.test)
    right = [int(p.label) == y for p, y in zip(predictions, parts.test_labels, strict=True)]
    assert np.mean(right) > 0.9
    known = np.mean([p.unknown for p in predictions])
    unknown = np.mean([p.unknown for p in model.predict(parts.unknown)[0]])
    assert known < 0.15
    assert unknown > 2 * known


def test_the_similarity_is_the_weighted_mean_of_two_cosines(model: Model, parts: Any) -> None:
    features = parts.arguments["val"][0][:10]
    inputs = model.classifier.probe_inputs
    assert inputs.whitening is not None
    omega = model.info.omega
    assert omega is not None
    whitened = inputs.whitening(features.double())
    common = model.fields(features)[0]
    torch.testing.assert_close(common.norm(dim=1), torch.ones(10, dtype=torch.float64))
    learned = in_passes(inputs, features)[0][:, whitened.shape[1] :]
    expected = omega * whitened @ whitened.T + learned @ learned.T
    torch.testing.assert_close(common @ common.T, expected)


def test_neighbours_are_of_the_same_class(model: Model, parts: Any) -> None:
    same = [
        neighbour.label == str(label)
        for image, label in zip(parts.test[:20], parts.test_labels, strict=False)
        for neighbour in model.neighbours(image, 5)
    ]
    assert np.mean(same) > 0.8


def test_an_added_class_is_recognised_also_after_loading(
    model: Model, parts: Any, tmp_path
) -> None:
    dataset = digits()
    eights = [dataset.open(int(row)) for row in np.flatnonzero(dataset.labels == 8)]
    before, _ = model.predict(parts.test[:100])
    model.add_class("eight", eights[:20])
    predictions, _ = model.predict(eights[20:])
    assert np.mean([p.label == "eight" for p in predictions]) > 0.4  # chance: 1/9
    after, _ = model.predict(parts.test[:100])
    assert np.mean([a.label == b.label for a, b in zip(after, before, strict=True)]) > 0.9
    model.save(tmp_path)
    assert load(tmp_path).predict(eights[20:40])[0] == predictions[:20]


def test_two_images_of_one_class(model: Model, parts: Any) -> None:
    same, different = [], []
    for i, first in enumerate(parts.test[:12]):
        assert model.same(first, first) > 0.9
        for j, second in enumerate(parts.test[:i]):
            probability = model.same(first, second)
            assert probability == model.same(second, first)
            (same if parts.test_labels[i] == parts.test_labels[j] else different).append(
                probability
            )
    assert np.mean(same) > np.mean(different) + 0.3


@pytest.mark.slow
def test_the_onnx_file_gives_the_same_results(model: Model, parts: Any, tmp_path) -> None:
    parity = export_onnx(model, tmp_path / "model.onnx", parts.test[:40])
    assert parity.probability < 1e-4
    assert parity.embedding < 1e-4
    assert parity.same_label == parity.same_rejection == 1
