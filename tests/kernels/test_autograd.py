import pytest
import torch

from scs_supcon.kernels.autograd import only_once


def test_a_second_derivative_is_refused_in_words() -> None:
    with torch.no_grad():
        only_once()
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice.*create_graph"):
        only_once()
