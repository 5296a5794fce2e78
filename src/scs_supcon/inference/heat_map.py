"""Heat maps: which regions of an image speak for a class.

The score of class c is its log-odds, z_c − log Σ_{k≠c} exp z_k with the calibrated logits z. Let
a_l be the activation of the last feature map at location l. Four ways to divide the score:

- `gradient`: (∂score/∂a_l)·a_l, which is exact if the score is linear in the mean of the map;
- `grad_cam`: the same with the gradient averaged over all locations (Selvaraju et al., 2017);
- `location`: the score of an image whose features are those of location l everywhere;
- `occlusion`: how much the score falls if a square around l is replaced by the mean colour, which
  needs one pass of the encoder per location.

Negative values speak against the class and are set to 0; the largest value becomes 1.
`benchmarks/heat_maps.py` measures which one finds the regions that matter: `occlusion`, which is
the default (docs/benchmarks/heat_maps.md). The others are quicker.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from scs_supcon.inference.model import Model
from scs_supcon.nn.encode import encode

Kind = Literal["gradient", "grad_cam", "location", "occlusion"]
KINDS: tuple[Kind, ...] = ("gradient", "grad_cam", "location", "occlusion")
DEFAULT: Kind = "occlusion"
SQUARES = 7  # rows and columns of squares to occlude
OVERLAP = 1.5  # side of a square relative to the distance of two squares


def heat_map(
    model: Model, view: Tensor, label: int, kind: Kind = DEFAULT
) -> NDArray[np.float64] | None:
    """Return how much each region (rows, columns) speaks for a class, from 0 to 1.

    Args:
        model: the model.
        view: the image as the encoder sees it (3, size, size), normalised.
        label: the class.
        kind: how the score is divided among the regions.

    Returns:
        The map; None if the encoder has no spatial feature map, which `occlusion` does not need.
    """
    if kind == "occlusion":
        values: Tensor | None = _occlusion(model, view, label)
    elif kind == "location":
        values = _location_scores(model, view, label)
    else:
        values = _gradient_map(model, view, label, average=kind == "grad_cam")
    if values is None or not bool(values.isfinite().all()):
        return None
    values = values.clamp_min(0)
    return (values / values.amax().clamp_min(1e-12)).double().numpy()


def log_odds(model: Model, features: Tensor, label: int) -> Tensor:
    """Return the score (n,) of a class for features (n, F), in float64 and differentiable."""
    probabilities = model.classifier(features.cpu().double())[0].probabilities
    others = torch.ones(probabilities.shape[1], dtype=torch.bool)
    others[label] = False
    against = probabilities[:, others].sum(1)  # not 1 − p, which loses all digits near p = 1
    score: Tensor = (
        probabilities[:, label].clamp_min(1e-300).log() - against.clamp_min(1e-300).log()
    )
    return score


def _gradient_map(model: Model, view: Tensor, label: int, *, average: bool) -> Tensor | None:
    body: Any = model.encoder.body
    if not hasattr(body, "forward_features") or not hasattr(body, "forward_head"):
        return None
    device = next(model.encoder.parameters()).device
    with torch.no_grad():
        activations = body.forward_features(view[None].to(device))
    activations = activations.detach().requires_grad_()
    with torch.enable_grad():
        features = body.forward_head(activations, pre_logits=True)
        (gradient,) = torch.autograd.grad(log_odds(model, features, label).sum(), activations)
    gradient, activations = gradient.float().cpu(), activations.detach().float().cpu()
    grids = [_grid(body, rows) for rows in (gradient, activations)]
    if grids[0] is None or grids[1] is None:
        return None
    gradient, activations = grids[0], grids[1]
    if average:
        gradient = gradient.mean((1, 2), keepdim=True)
    return (gradient * activations).sum(0)


def _location_scores(model: Model, view: Tensor, label: int) -> Tensor | None:
    body: Any = model.encoder.body
    if not hasattr(body, "forward_features") or not hasattr(body, "forward_head"):
        return None
    device = next(model.encoder.parameters()).device
    with torch.no_grad():
        activations = body.forward_features(view[None].to(device))
        if activations.ndim != 4:
            return None
        grid = _grid(body, activations)
        if grid is None:
            return None
        channels, rows, columns = grid.shape
        locations = grid.reshape(channels, -1).T[:, :, None, None]
        try:
            features = body.forward_head(locations, pre_logits=True)
        except RuntimeError:  # a head that needs the whole map
            return None
        scores = log_odds(model, features, label).reshape(rows, columns)
    return scores - scores.mean()  # the level is that of the class, not of a region


def _occlusion(model: Model, view: Tensor, label: int) -> Tensor:
    size = view.shape[-1]
    step = size / SQUARES
    side = max(1, math.ceil(OVERLAP * step))
    views = view.repeat(SQUARES * SQUARES + 1, 1, 1, 1)
    for number in range(SQUARES * SQUARES):
        centre = [(index + 0.5) * step for index in divmod(number, SQUARES)]
        top, left = (max(0, round(c - side / 2)) for c in centre)
        views[number, :, top : top + side, left : left + side] = 0.0  # the mean colour
    with torch.no_grad():
        scores = log_odds(model, torch.from_numpy(encode(model.folded_encoder, views)), label)
    return (scores[-1] - scores[:-1]).reshape(SQUARES, SQUARES)


def _grid(body: Any, activations: Tensor) -> Tensor | None:
    """Return activations (1, C, h, w), (1, h, w, C) or (1, tokens, C) as (C, h, w)."""
    if activations.ndim == 4:
        last = getattr(body, "output_fmt", "NCHW") == "NHWC"
        return activations[0].permute(2, 0, 1) if last else activations[0]
    if activations.ndim == 3:
        tokens = activations[0, getattr(body, "num_prefix_tokens", 0) :]
        side = math.isqrt(len(tokens))
        if side * side == len(tokens):
            return tokens.T.reshape(-1, side, side)
    return None


def resize_map(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return a map enlarged to (size, size) pixels, smoothly."""
    grid = torch.from_numpy(values)[None, None]
    resized = functional.interpolate(grid, (size, size), mode="bilinear", align_corners=False)
    return resized[0, 0].numpy()
