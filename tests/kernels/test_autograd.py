import pytest
import torch

from scs_supcon.kernels import full_precision
from scs_supcon.kernels.autograd import forbid_double_backward


def test_a_second_derivative_is_an_error_that_names_the_cause() -> None:
    with torch.no_grad():
        forbid_double_backward()
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice.*create_graph"):
        forbid_double_backward()


def test_full_precision_switches_autocast_off() -> None:
    x = torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with full_precision(x):
            assert (x @ x).dtype == torch.float32
