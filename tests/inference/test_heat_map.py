"""Heat maps, with plain references."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import scs_supcon
from scs_supcon.data.image_io import open_image
from scs_supcon.data.transforms import eval_view
from scs_supcon.inference.heat_map import KINDS, _grid, heat_map, log_odds, resize_map


@pytest.fixture(scope="module")
def model(finished):
    return scs_supcon.load(finished)


@pytest.fixture(scope="module")
def view(model, shapes):
    return eval_view(model.info.recipe.data)(open_image(next(shapes.rglob("*.png"))))


@pytest.mark.parametrize("kind", KINDS)
def test_values_lie_between_0_and_1(model, view, kind):
    values = heat_map(model, view, 0, kind)
    assert values.ndim == 2
    assert values.min() >= 0
    assert values.max() == pytest.approx(1)


def test_the_score_is_the_log_odds(model, view):
    features = model.encoder(view[None]).detach()
    probabilities = model.decide(features).probabilities[0].tolist()
    for label, p in enumerate(probabilities):
        expected = math.log(p) - math.log(sum(probabilities) - p)
        assert float(log_odds(model, features, label)) == pytest.approx(expected, rel=1e-6)


def test_the_gradient_map_is_the_derivative_by_the_activations(model, view):
    body = model.encoder.body
    with torch.no_grad():
        activations = body.forward_features(view[None])

    def score(changed):
        with torch.no_grad():
            return float(log_odds(model, body.forward_head(changed).double(), 1))

    rows, columns = activations.shape[2:]
    reference = np.zeros((rows, columns))
    step = 1e-2
    for i in range(rows):
        for j in range(columns):
            # The derivative in the direction of the activation of one location.
            up, down = activations.double().clone(), activations.double().clone()
            up[0, :, i, j] *= 1 + step
            down[0, :, i, j] *= 1 - step
            reference[i, j] = max(0.0, (score(up) - score(down)) / (2 * step))
    reference /= reference.max()
    np.testing.assert_allclose(heat_map(model, view, 1, "gradient"), reference, atol=0.02)


def test_occlusion_measures_the_fall_of_the_score(model, view):
    def score(image):
        with torch.no_grad():
            return float(log_odds(model, model.encoder(image[None]), 2))

    size = view.shape[-1]
    step, side = size / 7, math.ceil(1.5 * size / 7)
    falls = []
    for i in range(7):
        for j in range(7):
            covered = view.clone()
            top = max(0, round((i + 0.5) * step - side / 2))
            left = max(0, round((j + 0.5) * step - side / 2))
            covered[:, top : top + side, left : left + side] = 0
            falls.append(max(0.0, score(view) - score(covered)))
    reference = np.array(falls).reshape(7, 7) / max(falls)
    np.testing.assert_allclose(heat_map(model, view, 2, "occlusion"), reference, atol=1e-4)


def test_a_model_without_a_feature_map_has_no_heat_map(model, view, monkeypatch):
    monkeypatch.delattr(type(model.encoder.body), "forward_features")
    monkeypatch.setattr(
        type(model.encoder.body), "forward", lambda self, x: self.layers(x).mean((2, 3))
    )
    assert heat_map(model, view, 0, "gradient") is None
    assert heat_map(model, view, 0, "location") is None
    assert heat_map(model, view, 0) is not None  # occlusion needs none


def test_grad_cam_averages_the_gradient_over_the_locations(model, view):
    body = model.encoder.body
    activations = body.forward_features(view[None]).detach().requires_grad_()
    log_odds(model, body.forward_head(activations), 1).sum().backward()
    channels, rows, columns = activations.shape[1:]
    weights = [float(activations.grad[0, c].mean()) for c in range(channels)]
    values = activations.detach()[0].tolist()
    reference = np.zeros((rows, columns))
    for i in range(rows):
        for j in range(columns):
            terms = (weights[c] * values[c][i][j] for c in range(channels))
            reference[i, j] = max(0.0, math.fsum(terms))
    np.testing.assert_allclose(
        heat_map(model, view, 1, "grad_cam"), reference / reference.max(), atol=1e-4
    )


def test_a_location_is_scored_as_if_it_were_everywhere(model, view):
    body = model.encoder.body
    with torch.no_grad():
        activations = body.forward_features(view[None])
        rows, columns = activations.shape[2:]
        scores = np.array(
            [
                float(log_odds(model, activations[:, :, i, j], 1))
                for i in range(rows)
                for j in range(columns)
            ]
        )
    reference = np.maximum(scores - scores.mean(), 0).reshape(rows, columns)
    np.testing.assert_allclose(
        heat_map(model, view, 1, "location"), reference / reference.max(), atol=1e-4
    )


def test_maps_of_all_layouts_are_channels_rows_columns():
    grid = torch.arange(24.0).reshape(2, 3, 4)  # C, h, w
    assert torch.equal(_grid(SimpleNamespace(), grid[None]), grid)
    last = SimpleNamespace(output_fmt="NHWC")
    assert torch.equal(_grid(last, grid.permute(1, 2, 0)[None]), grid)
    square = torch.arange(18.0).reshape(2, 3, 3)
    tokens = torch.cat([torch.full((1, 2), -1.0), square.flatten(1).T])[None]
    assert torch.equal(_grid(SimpleNamespace(num_prefix_tokens=1), tokens), square)
    assert _grid(SimpleNamespace(), tokens[:, :7]) is None, "7 tokens are no square"


def test_a_map_is_enlarged_smoothly():
    """Bilinear, with pixels as areas: a quarter and three quarters of the way between centres."""
    enlarged = resize_map(np.array([[0.0, 1.0], [2.0, 3.0]]), 4)
    across = np.array([0.0, 0.25, 0.75, 1.0])
    np.testing.assert_allclose(enlarged, 2 * across[:, None] + across[None, :])
