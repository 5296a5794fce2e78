import pytest
import torch

from scs_supcon import CSSupCon, CSSupConOverlap
from scs_supcon.errors import UserError
from scs_supcon.methods import build_method


def reference(width: int, common: int, shared: int) -> tuple[list[int], list[int]]:
    """Columns of the common and of the style field: of 256, 0…191 and 164…255."""
    return list(range(common)), list(range(common - shared, width))


def test_28_of_256_columns_are_shared() -> None:
    common, style = reference(256, 192, 28)
    assert (style[0], len(style), len(set(common) & set(style))) == (164, 92, 28)
    loss = CSSupConOverlap(normalize="none")
    z = torch.randn(5, 256)
    c, s = loss.fields(z)
    assert torch.equal(c, z[:, common]) and torch.equal(s, z[:, style])


@pytest.mark.parametrize(
    ("column", "in_common", "in_style"), [(10, True, False), (170, True, True), (230, False, True)]
)
def test_which_field_a_column_reaches(column: int, in_common: bool, in_style: bool) -> None:
    z = torch.randn(6, 256, dtype=torch.float64)
    other = z.clone()
    other[0, column] += 1
    loss = CSSupConOverlap()
    labels = torch.arange(6) % 2
    before, after = loss.loss_terms(z, labels), loss.loss_terms(other, labels)
    assert bool(before["contrast"] != after["contrast"]) is in_common
    for name in ("style_contrast", "style"):
        assert bool(before[name] != after[name]) is in_style


def test_the_loss_is_that_of_cs_supcon_on_the_two_fields() -> None:
    """The two fields side by side, without an overlap, give the same loss."""
    z = torch.randn(6, 256, dtype=torch.float64)
    labels = torch.arange(6) % 2
    common, style = reference(256, 192, 28)
    side_by_side = torch.cat([z[:, common], z[:, style]], 1)
    torch.testing.assert_close(CSSupConOverlap()(z, labels), CSSupCon(192)(side_by_side, labels))


def test_options_reach_cs_supcon() -> None:
    method = build_method("cs_supcon_overlap", alpha=0.2, overlap=3, common_dim=5)
    assert isinstance(method, CSSupConOverlap)
    assert (method.alpha, method.overlap, method.common_dim) == (0.2, 3, 5)


def test_the_overlap_must_not_exceed_the_common_field() -> None:
    with pytest.raises(UserError, match=r"between 0 and common_dim \(6\), got 28"):
        CSSupConOverlap()(torch.randn(4, 8), torch.arange(4))
