import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.methods import probe_input_for
from scs_supcon.methods.shared.common_style import CommonStyleMethod


@pytest.mark.parametrize(("width", "common"), [(1, 1), (2, 1), (4, 3), (10, 7), (256, 192)])
def test_by_default_three_quarters_are_common(width: int, common: int) -> None:
    assert CommonStyleMethod().width(torch.ones(2, width)) == common
    assert CommonStyleMethod(1).width(torch.ones(2, width)) == 1
    assert CommonStyleMethod(width).width(torch.ones(2, width)) == width


@pytest.mark.parametrize("common_dim", [0, -3, 6])
def test_common_dim_must_fit_the_embeddings(common_dim: int) -> None:
    with pytest.raises(UserError, match=rf"between 1 and the width .* \(5\), got {common_dim}"):
        CommonStyleMethod(common_dim).fields(torch.ones(2, 5))


@pytest.mark.parametrize("overlap", [-1, 4])
def test_overlap_must_fit_the_common_field(overlap: int) -> None:
    with pytest.raises(UserError, match=rf"between 0 and common_dim \(3\), got {overlap}"):
        CommonStyleMethod(3, overlap=overlap).fields(torch.ones(2, 5))


def test_the_probe_input_is_the_common_field() -> None:
    for frozen in (False, True):
        assert probe_input_for(CommonStyleMethod(2), frozen=frozen) == "common"


def test_an_unknown_value_of_normalize_is_an_error() -> None:
    with pytest.raises(UserError, match=r"normalize must be .*, got 'both'"):
        CommonStyleMethod(normalize="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("gather", [False, True])
def test_one_process_gathers_nothing(gather: bool) -> None:
    assert not CommonStyleMethod(gather_across_devices=gather).gathers
