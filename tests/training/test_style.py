"""The style field of a trained encoder uses as many directions as do not reveal the class."""

import torch
from torch import Tensor

from scs_supcon.evaluation.leakage import purity
from scs_supcon.nn.head import Projection, unit
from scs_supcon.training.style import MAX_PURITY, MIN_DIRECTIONS, fit_style_field


def features_of(labels: Tensor, *, own_directions: bool) -> Tensor:
    """Four directions with a large variance; the others vary in one class each, or in all."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(labels), 16, generator=generator)
    rows[:, :4] *= 10
    if own_directions:
        for column in range(4, 16):
            rows[labels != column % 3, column] *= 0.01
    return rows[:, None]


def test_directions_in_which_one_class_varies_are_left_out() -> None:
    labels = torch.arange(300) % 3
    features = features_of(labels, own_directions=True)
    head = Projection(16, 18, centre=True, erased_dim=12)
    used = fit_style_field(head, features, labels, 3)
    assert MIN_DIRECTIONS <= used < 12
    style = head.eval()(features[:, 0])[:, 6:].detach().double()
    assert torch.equal(style[:, used:], torch.zeros_like(style[:, used:]))
    assert purity(unit(style), labels) <= MAX_PURITY


def test_all_directions_are_used_if_none_reveals_the_class() -> None:
    labels = torch.arange(300) % 3
    head = Projection(16, 18, centre=True, erased_dim=12)
    assert fit_style_field(head, features_of(labels, own_directions=False), labels, 3) == 12
    assert not (head.eval()(torch.randn(5, 16))[:, 6:] == 0).any()


def test_directions_that_change_with_the_view_are_left_out() -> None:
    labels = torch.arange(300) % 3
    generator = torch.Generator().manual_seed(1)
    views = features_of(labels, own_directions=False).repeat(1, 3, 1)
    views[:, :, 4:] = torch.randn(300, 3, 12, generator=generator)  # other values in every view
    head = Projection(16, 18, centre=True, erased_dim=12)
    used = fit_style_field(head, views, labels, 3)
    assert MIN_DIRECTIONS <= used < 12
    style = unit(head.eval()(views.flatten(0, 1))[:, 6:].detach()).view(300, 3, 12)
    assert float((style[:, 1] * style[:, 2]).sum(1).mean()) > 0.3


def test_a_head_without_style_and_no_images_are_left_alone() -> None:
    labels = torch.arange(30) % 3
    features = features_of(labels, own_directions=True)
    assert fit_style_field(Projection(16, 6), features, labels, 3) == 0
    head = Projection(16, 18, erased_dim=12)
    assert fit_style_field(head, features[:0], labels[:0], 3) == 12
