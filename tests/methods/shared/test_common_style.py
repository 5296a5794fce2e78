import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.kernels import Rows
from scs_supcon.methods import probe_input_for
from scs_supcon.methods.shared.base import prepare
from scs_supcon.methods.shared.common_style import CommonStyleMethod, PairInputs, several_processes


def reference(width: int) -> int:
    """Columns of the common field when nothing is said: three quarters, at least one."""
    return max(1, width * 3 // 4)


@pytest.mark.parametrize(("width", "common"), [(1, 1), (2, 1), (4, 3), (10, 7), (256, 192)])
def test_three_quarters_are_common_unless_said_otherwise(width: int, common: int) -> None:
    assert CommonStyleMethod().width(torch.ones(2, width)) == common == reference(width)
    assert CommonStyleMethod(1).width(torch.ones(2, width)) == 1
    assert CommonStyleMethod(width).width(torch.ones(2, width)) == width


@pytest.mark.parametrize("common_dim", [0, -3, 6])
def test_common_dim_out_of_range(common_dim: int) -> None:
    said = rf"embeddings have 5 columns, common_dim is {common_dim}: choose 1 ≤ common_dim ≤ 5"
    with pytest.raises(UserError, match=said):
        CommonStyleMethod(common_dim).fields(torch.ones(2, 5))


@pytest.mark.parametrize("overlap", [-1, 4])
def test_overlap_out_of_range(overlap: int) -> None:
    with pytest.raises(UserError, match=rf"overlap is {overlap}: choose 0 ≤ overlap ≤ .* = 3"):
        CommonStyleMethod(3, overlap=overlap).fields(torch.ones(2, 5))


def test_the_probe_sees_the_common_field() -> None:
    for frozen in (False, True):
        assert probe_input_for(CommonStyleMethod(2), frozen=frozen) == "common"


def test_one_process_is_held_against_itself() -> None:
    rows, order = prepare(torch.randn(4, 4), torch.tensor([1, 0, 1, 0]))
    for gather in (False, True):
        sides = CommonStyleMethod(gather_across_devices=gather).sides(rows, order)
        assert sides.columns is None and sides.reference_common is None
        assert sides.common.shape == (4, 3) and sides.style.shape == (4, 1)
        assert sides.all_rows is order and sides.apart is None


def test_gathered_rows_and_references_are_told_apart() -> None:
    rows, x = Rows(torch.tensor([0, 1])), torch.ones(2, 1)
    gathered = Rows(torch.tensor([0, 0, 1, 1]), own=torch.tensor([1, 2]))
    joined = PairInputs(rows, x, x, gathered, torch.ones(4, 1), torch.ones(4, 1))
    assert joined.all_rows is gathered and joined.apart is None
    references = Rows(torch.tensor([0, 5]))
    apart = PairInputs(rows, x, x, references, x, x)
    assert apart.all_rows is rows and apart.apart is references


def test_an_unknown_way_to_normalise_is_refused() -> None:
    with pytest.raises(UserError, match=r"normalize must be .*, got 'both'"):
        CommonStyleMethod(normalize="both")  # type: ignore[arg-type]


def test_here_is_only_one_process() -> None:
    assert not several_processes()
