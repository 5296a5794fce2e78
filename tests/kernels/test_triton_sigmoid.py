"""The Triton kernel without a GPU: Triton's interpreter against float64 references.

The interpreter is sequential NumPy: it checks formulas, indices and masks, not races, registers or
speed. It has to be chosen before Triton is imported, so the tests run in a process of their own.
"""

import os
import subprocess
import sys

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":

    def test_the_kernel_in_the_interpreter() -> None:
        pytest.importorskip("triton")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "passed" in done.stdout and "skipped" not in done.stdout

else:
    from typing import Any

    import torch
    from hypothesis import given, settings
    from hypothesis import strategies as st
    from torch import Tensor

    from pair_batches import Rows, labelled_rows
    from scs_supcon.kernels import sigmoid_pair_loss
    from scs_supcon.kernels.dense import dense_sigmoid_loss
    from scs_supcon.kernels.triton_sigmoid import supported, triton_sigmoid_loss

    def compare(
        x: Tensor, labels: Tensor, t: float, b: float, weighting: Any, **options: Any
    ) -> None:
        """Compare value and gradients of float32 rows with the dense formula in float64.

        The tolerance is that of the logit in float32, eps (t |r| + |b|).
        """
        results = []
        for dtype in (torch.float64, torch.float32):
            y = x.detach().float().to(dtype).requires_grad_()
            tt, bb = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (t, b))
            if dtype == torch.float64:
                value, _ = dense_sigmoid_loss(y, labels, tt, bb, weighting=weighting, **options)
            else:
                value = by_kernel(y, labels, tt, bb, weighting, **options)
            value.backward()
            results.append([v.detach().double() for v in (value, y.grad, tt.grad, bb.grad)])
        longest = float(x.norm(dim=1).max()) if len(x) else 0.0
        bound = 8 * torch.finfo(torch.float32).eps * (t * max(longest, 1) ** 2 + abs(b) + 2)
        for exact, found in zip(*results, strict=True):
            size = torch.linalg.vector_norm(exact)
            assert torch.linalg.vector_norm(found - exact) <= bound * max(size, 1e-2)

    def by_kernel(
        x: Tensor, labels: Tensor, t: Tensor, b: Tensor, weighting: Any, **options: Any
    ) -> Tensor:
        from scs_supcon.kernels.dense import pair_weights
        from scs_supcon.kernels.layout import PairLabels, SortedLabels

        pairs = PairLabels(SortedLabels(labels.sort().values))
        total, positive = pairs.count(options.get("include_self", True))
        weights = tuple(torch.tensor(w) for w in pair_weights(total, positive, weighting))
        return triton_sigmoid_loss(x, None, labels, labels, None, t, b, weights, **options)

    @settings(max_examples=25)
    @given(
        labelled_rows(),
        st.sampled_from([0.1, 10.0, 100.0]),
        st.sampled_from([-3.0, 0.0, 5.0, 50.0]),
        st.sampled_from(["all", "balanced", "positives"]),
        st.booleans(),
        st.sampled_from([0.0, 0.2]),
    )
    def test_small_batches(
        batch: Rows, t: float, b: float, weighting: Any, include_self: bool, margin: float
    ) -> None:
        compare(*batch, t, b, weighting, include_self=include_self, margin=margin)

    @pytest.mark.parametrize(
        ("n", "d", "classes", "t", "b"),
        [(70, 64, 5, 10, 5), (129, 33, 200, 0.1, 0), (150, 100, 1, 10, 10), (65, 1, 65, 3, 1)],
    )
    @pytest.mark.parametrize("include_self", [True, False])
    def test_odd_sizes_one_class_and_all_different(
        n: int, d: int, classes: int, t: float, b: float, include_self: bool
    ) -> None:
        x = torch.nn.functional.normalize(torch.randn(n, d, dtype=torch.float64))
        x[3] = 0
        labels = torch.arange(n) % classes
        compare(x, labels, t, b, "all", include_self=include_self)

    def test_a_tiny_loss_keeps_its_digits() -> None:
        x = torch.eye(4, dtype=torch.float64).repeat(3, 1)
        labels = torch.arange(4).repeat(3)
        t, b = (torch.tensor(v, dtype=torch.float64) for v in (100.0, 50.0))
        value = by_kernel(x.float(), labels, t, b, "all")
        exact, _ = dense_sigmoid_loss(x, labels, t, b)
        assert 0 < exact < 1e-20
        assert value.item() == pytest.approx(exact.item(), rel=1e-4)

    def test_half_precision_inputs() -> None:
        x = torch.nn.functional.normalize(torch.randn(40, 16)).bfloat16()
        labels = torch.arange(40) % 3
        t, b = torch.tensor(10.0), torch.tensor(2.0)
        value = by_kernel(x, labels, t, b, "all")
        exact, _ = dense_sigmoid_loss(x.double(), labels, t.double(), b.double())
        assert value.item() == pytest.approx(exact.item(), rel=1e-2)  # the value is bfloat16
        assert not supported(x, None) and supported(x.float(), None)

    @pytest.mark.parametrize("one_set", [False, True])
    def test_references_and_positions(one_set: bool) -> None:
        """Rows 0 to 19 of 50 as queries, as on one of several processes."""
        x = torch.nn.functional.normalize(torch.randn(50, 8))
        labels = torch.arange(50) % 4
        t, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (5.0, 1.0))
        q = x[:20].clone().requires_grad_()
        weights = torch.tensor(0.5), torch.tensor(0.25)
        position = torch.arange(20) if one_set else None
        value = triton_sigmoid_loss(
            q,
            x,
            labels[:20],
            labels,
            position,
            t,
            b,
            weights,
            include_self=not one_set,
            one_set=one_set,
        )
        value.backward()
        y = x[:20].double().requires_grad_()
        tt, bb = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (5.0, 1.0))
        same = labels[:20, None] == labels
        a = tt * (y @ x.double().T) - bb
        cost = torch.nn.functional.softplus(torch.where(same, -a, a)) * torch.where(same, 0.5, 0.25)
        if one_set:
            cost = cost * (torch.arange(20)[:, None] != torch.arange(50))
        cost.sum().backward()
        torch.testing.assert_close(value.double(), cost.sum(), rtol=1e-5, atol=0)
        factor = 2 if one_set else 1
        torch.testing.assert_close(q.grad.double(), factor * y.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close((t.grad, b.grad), (tt.grad, bb.grad), rtol=1e-5, atol=1e-7)

    def test_the_loss_selects_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
        from scs_supcon.kernels import sigmoid

        x = torch.nn.functional.normalize(torch.randn(150, 12))
        labels = torch.arange(150) % 7
        t = torch.tensor(10.0, dtype=torch.float64)
        plain = sigmoid_pair_loss(x, labels, t, None, weighting="positives")
        monkeypatch.setattr(sigmoid, "_use_triton", lambda *_: True)
        monkeypatch.setattr(sigmoid, "reads_are_free", lambda _: False)
        monkeypatch.setattr("scs_supcon.kernels.bias.reads_are_free", lambda _: False)
        fused = sigmoid_pair_loss(x, labels, t, None, weighting="positives")
        torch.testing.assert_close(fused[1].double(), plain[1].double(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fused[0], plain[0], rtol=1e-5, atol=0)
