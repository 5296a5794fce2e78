import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scs_supcon import SimCLR, SupCon
from scs_supcon.errors import UserError
from scs_supcon.methods import Batch, Output


def reference(images: list[list[list[float]]], temperature: float) -> float:
    """NT-Xent, Chen et al. (2020), Eq. 1: mean over all views of −log softmax of the other view.

    With more than two views: the mean over the other views of the image.
    """
    flat = [(k, v) for k, views in enumerate(images) for v in views]
    units = [(k, [x / math.hypot(*v) for x in v]) for k, v in flat]
    total = 0.0
    for i, (k, z) in enumerate(units):
        logits = [
            (image == k, math.fsum(x * y for x, y in zip(z, w, strict=True)) / temperature)
            for j, (image, w) in enumerate(units)
            if j != i
        ]
        others = [x for same, x in logits if same]
        top = max((x for _, x in logits), default=0.0)
        if others:
            log_z = top + math.log(math.fsum(math.exp(x - top) for _, x in logits))
            total += math.fsum(log_z - x for x in others) / len(others)
    return total / len(units)


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 3)))
    source = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    return torch.randn(*shape, 4, generator=source, dtype=torch.float64)


@given(views(), st.sampled_from([0.02, 0.1, 0.5]))
def test_the_loss_equals_the_reference(z: Tensor, temperature: float) -> None:
    """Rows are paired by the view axis, or by image ids in any order."""
    expected = pytest.approx(reference(z.tolist(), temperature), rel=1e-10, abs=1e-13)
    loss = SimCLR(temperature)
    assert loss(z).item() == expected
    order = torch.randperm(z.shape[0] * z.shape[1])
    ids = torch.arange(len(z)).repeat_interleave(z.shape[1]) * 5 - 3
    assert loss(z.flatten(0, 1)[order], ids[order]).item() == expected


@given(views(), st.sampled_from([0.02, 0.1, 0.5]))
def test_supcon_with_unique_labels_is_the_same_loss(z: Tensor, temperature: float) -> None:
    labels = torch.arange(len(z)) + 40
    torch.testing.assert_close(SimCLR(temperature)(z), SupCon(temperature)(z, labels))


@pytest.mark.parametrize("images", [1, 2, 4, 10])
def test_equal_vectors_give_ln_of_2b_minus_1(images: int) -> None:
    z = torch.ones(images, 2, 3, dtype=torch.float64)
    assert SimCLR()(z).item() == pytest.approx(math.log(2 * images - 1), abs=1e-12)


def test_class_labels_of_views_are_not_used() -> None:
    z = torch.randn(4, 2, 5, dtype=torch.float64)
    assert torch.equal(SimCLR()(z), SimCLR()(z, torch.tensor([0, 0, 1, 1])))


def test_swapping_the_views_changes_nothing() -> None:
    z = torch.randn(6, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(SimCLR()(z.flip(1)), SimCLR()(z), rtol=1e-12, atol=0)
    torch.testing.assert_close(SimCLR()(3 * z), SimCLR()(z), rtol=1e-12, atol=0)


def test_rows_without_views_need_image_ids() -> None:
    with pytest.raises(UserError, match=r"pass image ids with \(N, D\) embeddings"):
        SimCLR()(torch.randn(4, 5))


def test_a_batch_is_paired_by_its_images_not_by_its_classes() -> None:
    """Two images of one class, two views each, view-major."""
    embeddings = torch.randn(4, 5, dtype=torch.float64)

    def network(images: Tensor) -> Output:
        return Output(images, embeddings)

    batch = Batch(torch.zeros(4), torch.tensor([3, 3]), torch.tensor([17, 5]))
    (value,) = SimCLR().training_step(batch, network).values()
    by_views = embeddings.view(2, 2, 5).transpose(0, 1)
    torch.testing.assert_close(value, SimCLR()(by_views))


def test_gradcheck() -> None:
    z = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(SimCLR(0.3), (z,))
