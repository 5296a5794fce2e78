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
    import warnings
    from collections.abc import Iterator
    from typing import Any

    import torch
    from hypothesis import given, settings
    from hypothesis import strategies as st
    from torch import Tensor

    from pair_batches import Rows, by_label, labelled_rows, scalar
    from scs_supcon.kernels import Pairs, Sides, sigmoid, sigmoid_pairs, triton_sigmoid
    from scs_supcon.kernels.dense import sigmoid_cost
    from scs_supcon.kernels.layout import Layout, SortedLabels
    from scs_supcon.kernels.pairs import pair_weights
    from scs_supcon.kernels.triton_sigmoid import supported, works

    def dense(
        x: Tensor, labels: Tensor, t: Tensor, b: Tensor, divide_by: Any, include_self: bool = True
    ) -> Tensor:
        """Return the loss from whole matrices."""
        same = labels[:, None] == labels
        counted = torch.ones_like(same)
        if not include_self:
            counted.fill_diagonal_(False)
        totals = float(counted.sum()), float((same & counted).sum())
        return (
            sigmoid_cost(t * (x @ x.T) - b, same, *pair_weights(*totals, divide_by)) * counted
        ).sum()

    def compare(
        x: Tensor, labels: Tensor, t: float, b: float, divide_by: Any, include_self: bool
    ) -> None:
        """Compare value and gradients of float32 rows with the dense formula in float64.

        The tolerance is that of the logit in float32, eps (t |r| + |b|).
        """
        results = []
        for dtype in (torch.float64, torch.float32):
            y = x.detach().float().to(dtype).requires_grad_()
            tt, bb = scalar(t, True), scalar(b, True)
            compute = dense if dtype == torch.float64 else by_kernel
            value = compute(y, labels, tt, bb, divide_by, include_self)
            value.backward()
            results.append([v.detach().double() for v in (value, y.grad, tt.grad, bb.grad)])
        longest = float(x.norm(dim=1).max()) if len(x) else 0.0
        bound = 8 * torch.finfo(torch.float32).eps * (t * max(longest, 1) ** 2 + abs(b) + 2)
        for exact, found in zip(*results, strict=True):
            size = torch.linalg.vector_norm(exact)
            assert torch.linalg.vector_norm(found - exact) <= bound * max(size, 1e-2)

    def by_kernel(
        x: Tensor, labels: Tensor, t: Tensor, b: Tensor, divide_by: Any, include_self: bool = True
    ) -> Tensor:
        sides, pairs = by_label(x, labels)
        queries, others = pairs.layout.arrange(*sides)
        weights = pair_weights(*pairs.layout.count_on_device(include_self), divide_by)
        return triton_sigmoid.triton_sigmoid(
            queries, others, pairs.layout, t, b, weights, include_self
        )

    @settings(max_examples=25)
    @given(
        labelled_rows(),
        st.sampled_from([0.1, 10.0, 100.0]),
        st.sampled_from([-3.0, 0.0, 5.0, 50.0]),
        st.sampled_from(["all", "balanced", "positives"]),
        st.booleans(),
    )
    def test_small_batches(
        batch: Rows, t: float, b: float, divide_by: Any, include_self: bool
    ) -> None:
        compare(*batch, t, b, divide_by, include_self)

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
        compare(x, labels, t, b, "all", include_self)

    def test_a_tiny_loss_keeps_its_digits() -> None:
        x = torch.eye(4, dtype=torch.float64).repeat(3, 1)
        labels = torch.arange(4).repeat(3)
        t, b = scalar(100.0), scalar(50.0)
        value = by_kernel(x.float(), labels, t, b, "all")
        exact = dense(x, labels, t, b, "all")
        assert 0 < exact < 1e-20
        assert value.item() == pytest.approx(exact.item(), rel=1e-4)

    def test_half_precision_inputs() -> None:
        x = torch.nn.functional.normalize(torch.randn(40, 16)).bfloat16()
        labels = torch.arange(40) % 3
        t, b = torch.tensor(10.0), torch.tensor(2.0)
        value = by_kernel(x, labels, t, b, "all")
        exact = dense(x.double(), labels, t.double(), b.double(), "all")
        assert value.item() == pytest.approx(exact.item(), rel=1e-2)  # the value is bfloat16
        assert not supported(x, None) and supported(x.float(), None)

    def test_what_the_kernel_supports() -> None:
        x, r = torch.zeros(3, 4), torch.zeros(2, 4)
        assert supported(x, None) and supported(x, r)
        assert not supported(x, r.requires_grad_())
        assert supported(torch.zeros(3, 256), None)
        for width in (0, 257):
            assert not supported(torch.zeros(3, width), None)

    class GatheredBefore(Layout):
        """The rows of several processes, whose sums are not added here."""

        one_set = True

    @pytest.mark.parametrize("one_set", [False, True])
    def test_references_and_positions(one_set: bool) -> None:
        """Rows 0 to 19 of 50 as queries, as on one of several processes."""
        x = torch.nn.functional.normalize(torch.randn(50, 8))
        labels = torch.arange(50) // 13
        t, b = scalar(5.0, True), scalar(1.0, True)
        q = x[:20].clone().requires_grad_()
        weights = torch.tensor(0.5), torch.tensor(0.25)
        right = SortedLabels(labels, torch.arange(20) if one_set else None)
        layout = GatheredBefore if one_set else Layout
        pairs = layout(SortedLabels(labels[:20]), torch.arange(20), right)
        value = triton_sigmoid.triton_sigmoid(q, x, pairs, t, b, weights, include_self=not one_set)
        value.backward()
        y = x[:20].double().requires_grad_()
        tt, bb = scalar(5.0, True), scalar(1.0, True)
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
        x = torch.nn.functional.normalize(torch.randn(150, 12))
        labels = torch.arange(150) % 7
        pairs, t = by_label(x, labels, divide_by="positives"), scalar(10.0)
        plain = sigmoid_pairs(*pairs, t, None)
        monkeypatch.setattr(sigmoid, "_use_triton", lambda *_: True)
        monkeypatch.setattr(sigmoid, "reads_are_free", lambda _: False)
        monkeypatch.setattr("scs_supcon.kernels.bias.reads_are_free", lambda _: False)
        fused = sigmoid_pairs(*pairs, t, None)
        torch.testing.assert_close(fused[1].double(), plain[1].double(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fused[0], plain[0], rtol=1e-5, atol=0)

    # The check of the kernel before its first use

    CPU = torch.device("cpu")

    @pytest.fixture
    def unchecked() -> Iterator[None]:
        """Forget the results of earlier checks, before and after a test."""
        works.cache_clear()
        yield
        works.cache_clear()

    class OnGPU(Tensor):
        """A tensor of the CPU, where the interpreter runs the kernel, that says it is on a GPU."""

        is_cuda = True

    def batch_on_gpu() -> tuple[Sides, Pairs]:
        """A batch that is not computed by the path for small batches on a CPU."""
        x = torch.nn.functional.normalize(torch.randn(30, 6)).as_subclass(OnGPU)
        return Sides(x), Pairs.of(torch.arange(30) % 4, gather=True)

    class Calls:
        """Count the launches of the kernel."""

        def __init__(self, kernel: Any) -> None:
            self.kernel, self.number = kernel, 0

        def __getitem__(self, grid: Any) -> Any:
            self.number += 1
            return self.kernel[grid]

    @pytest.fixture
    def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
        counted = Calls(triton_sigmoid._pairs_kernel)
        monkeypatch.setattr(triton_sigmoid, "_pairs_kernel", counted)
        return counted

    def break_kernel(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if how == "raises":
            monkeypatch.setattr(triton_sigmoid, "_pairs_kernel", None)  # cannot be launched
            return
        kernel = triton_sigmoid.triton_sigmoid

        def wrong(*arguments: Any) -> Tensor:
            queries, others, layout, t, b, weights, *rest = arguments
            if how == "a wrong gradient":
                t = t.detach()  # of t alone; the value is right
                return kernel(queries, others, layout, t, b, weights, *rest) + 0 * arguments[3]
            b = b + (0.01 if how == "a wrong value" else torch.nan)
            return kernel(queries, others, layout, t, b, weights, *rest)

        monkeypatch.setattr(triton_sigmoid, "triton_sigmoid", wrong)

    @pytest.mark.usefixtures("unchecked")
    def test_the_kernel_works_and_is_checked_once(calls: Calls) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            assert works(CPU)
            assert calls.number == 1
            assert works(torch.device("cpu"))
        assert calls.number == 1
        with pytest.warns(RuntimeWarning, match="meta"):  # another device is checked, too
            assert not works(torch.device("meta"))

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("mode", ["autocast", "no_grad", "inference_mode"])
    def test_the_check_does_not_depend_on_the_mode_of_the_first_call(mode: str) -> None:
        autocast = torch.autocast("cpu", dtype=torch.bfloat16)
        context = autocast if mode == "autocast" else getattr(torch, mode)()
        with warnings.catch_warnings(), context:
            warnings.simplefilter("error", RuntimeWarning)
            assert works(CPU)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("how", ["raises", "a wrong value", "a wrong gradient", "NaN"])
    def test_a_kernel_that_fails_is_not_used(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        sides, pairs = batch_on_gpu()
        t, b = scalar(10.0), scalar(3.0)
        plain, _ = sigmoid_pairs(sides, pairs, t, b, tile=512)
        break_kernel(how, monkeypatch)
        with pytest.warns(RuntimeWarning, match="Triton") as caught:
            first, _ = sigmoid_pairs(sides, pairs, t, b)
            second, _ = sigmoid_pairs(sides, pairs, t, b)
        assert [w.category for w in caught].count(RuntimeWarning) == 1
        assert torch.equal(first, plain) and torch.equal(second, plain)

    @pytest.mark.usefixtures("unchecked")
    def test_a_kernel_that_works_is_used(calls: Calls) -> None:
        sides, pairs = batch_on_gpu()
        plain, _ = sigmoid_pairs(sides, pairs, scalar(10.0), scalar(3.0), tile=512)
        assert calls.number == 0
        fused, _ = sigmoid_pairs(sides, pairs, scalar(10.0), scalar(3.0))
        assert calls.number == 2  # the check and the loss
        sigmoid_pairs(sides, pairs, scalar(10.0), scalar(3.0))
        assert calls.number == 3
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=0)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("case", ["SCS_TRITON=0", "a CPU", "float64"])
    def test_when_the_kernel_is_not_used(
        case: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (x, _), pairs = batch_on_gpu()
        if case == "SCS_TRITON=0":
            monkeypatch.setenv("SCS_TRITON", "0")
        elif case == "a CPU":
            x = x.as_subclass(Tensor)
        else:
            x = x.double()
        sigmoid_pairs(Sides(x), pairs, scalar(10.0), scalar(3.0))
        assert calls.number == 0
