"""torch.compile leaves the losses out of the graph: same value, same gradient."""

import pytest
import torch
from torch import Tensor

from scs_supcon import CSSupCon, SCSSupCon, SimCLR, SupCon


def test_a_compiled_step_gives_the_same_value_and_gradient() -> None:
    pytest.importorskip("torch._dynamo", reason="torch.compile is not available")
    layer = torch.nn.Linear(6, 8)
    labels = torch.arange(10) % 3
    for loss in (SCSSupCon(), SCSSupCon(preset="paper"), SupCon(), SimCLR(), CSSupCon()):

        def step(x: Tensor, loss: torch.nn.Module = loss) -> Tensor:
            value: Tensor = loss(torch.relu(layer(x)), labels) * 2
            return value

        x = torch.randn(10, 6)
        results = []
        for run in (step, torch.compile(step, backend="eager")):
            layer.zero_grad()
            value = run(x)
            value.backward()
            assert layer.weight.grad is not None
            results.append((value.detach(), layer.weight.grad.clone()))
        torch.compiler.reset()
        assert torch.equal(results[0][0], results[1][0])
        assert torch.equal(results[0][1], results[1][1])
