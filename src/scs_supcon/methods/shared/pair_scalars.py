"""Temperature t and bias b of a sigmoid pair loss, a = t r − b, and what is logged of its pairs.

t = exp(t'). Both are tensors of shape (1,), because FSDP does not accept scalars. They are float64,
which costs nothing for two numbers and makes t equal t0 in every digit, and stay float32 or better
if the module is converted to half precision, where small updates would be rounded away. They are
registered as `bias_log_t` and `bias_b`: the Hugging Face Trainer, for example, decays every
parameter whose name does not contain "bias" or "norm".
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import Pairs, Weighting
from scs_supcon.kernels.autograd import reads_are_free, transformed, wide
from scs_supcon.kernels.gather import (
    Group,
    average_gradients,
    divided_gradient,
    inside_data_parallel,
    several_processes,
)
from scs_supcon.kernels.layout import members
from scs_supcon.methods.shared.base import (
    Method,
    ParameterGroup,
    check_not_negative,
    check_one_of,
    check_positive,
)

Bias = Literal["learn", "fixed", "solve"]

LOG_MAX_T = math.log(100.0)
NAMES = {"log_t": "bias_log_t", "b": "bias_b"}  # attribute: name of the parameter


class PairPreset(TypedDict):
    """Arguments of a sigmoid pair loss that belong together."""

    pairs: Weighting
    t0: float
    b0: NotRequired[float]
    bias: Bias


class PairScalars(Method):
    """A method with t' (`log_t`) and b; a subclass calls `set_scalars` in its constructor."""

    bias_log_t: nn.Parameter
    bias_b: Tensor
    bias: Bias
    gradient_divisor = 1  # of t' and b, for wrappers that multiply the loss by a number

    def set_scalars(
        self, preset: PairPreset, t0: float | None, b0: float | None, bias: Bias | None
    ) -> None:
        """Create t' and b; they are parameters if the bias is learned."""
        self.bias = bias = preset["bias"] if bias is None else bias
        check_one_of("bias", bias, ("learn", "fixed", "solve"))
        t0 = preset["t0"] if t0 is None else t0
        check_positive(t0=t0)
        if math.log(t0) > LOG_MAX_T:
            raise UserError(f"t0 must be at most 100, got {t0}")
        if b0 is not None and bias == "solve":
            raise UserError(
                f"b0 = {b0} has no effect, because b is solved at every step: leave it out, or use "
                'bias="learn" or bias="fixed"'
            )
        b0 = preset.get("b0", 0.0) if b0 is None else b0
        if not math.isfinite(b0):
            raise UserError(f"b0 must be finite, got {b0}")
        log_t = torch.tensor([math.log(t0)], dtype=torch.float64, device="cpu")
        learned = bias == "learn"
        self.register_parameter(NAMES["log_t"], nn.Parameter(log_t, requires_grad=learned))
        initial_b = torch.tensor([b0], dtype=torch.float64, device="cpu")
        if learned:
            self.register_parameter(NAMES["b"], nn.Parameter(initial_b))
        else:
            self.register_buffer(NAMES["b"], initial_b)

    @property
    def log_t(self) -> nn.Parameter:
        """t', the logarithm of t, of shape (1,)."""
        return self.bias_log_t

    @property
    def b(self) -> Tensor:
        """b, of shape (1,): a parameter if it is learned, otherwise a buffer."""
        return self.bias_b

    @property
    def t(self) -> Tensor:
        return self.log_t.detach().exp().reshape(())

    @property
    def boundary(self) -> Tensor:
        """The similarity above which a pair is classified as "same class"."""
        return self.b.detach().reshape(()) / self.t

    def extra_repr(self) -> str:
        """Return the arguments of the constructor, and the current t and b."""
        scalars = f"t={float(self.t):.4g}, b={float(self.b.detach()):.4g}"
        return ", ".join(filter(None, [super().extra_repr(), scalars]))

    def scalars(self) -> dict[str, float]:
        """Return t, b and the boundary."""
        t, b, boundary = torch.stack([self.t, self.b.detach().reshape(()), self.boundary]).tolist()
        return {"t": t, "b": b, "boundary": boundary}

    def param_groups(
        self, lr: float, weight_decay: float = 0.0, *, lr_t: float = 1.0, lr_b: float = 1.0
    ) -> list[ParameterGroup]:
        """Return parameter groups for an optimiser, without weight decay for t' and b.

        It would pull t towards 1.

        Args:
            lr: learning rate.
            weight_decay: of matrices, such as those of a classifier.
            lr_t: factor of the learning rate of t'.
            lr_b: factor of the learning rate of b.
        """
        check_not_negative(lr_t=lr_t, lr_b=lr_b)
        groups = super().param_groups(lr, weight_decay)
        if lr_t == lr_b == 1:
            return groups
        factors = {self.log_t: lr_t, self.b: lr_b}
        return [
            {**group, "params": [p], "lr": lr * factors.get(p, 1.0)}
            for group in groups
            for p in group["params"]  # type: ignore[union-attr]
        ]

    def t_and_b(self) -> tuple[Tensor, Tensor | None]:
        """Return t and b, of shape (1,), with their gradients; b is None if it is to be solved."""
        log_t: Tensor = self.log_t
        b = self.b
        self._limit(log_t)
        if self.bias == "learn":
            if self.training and torch.is_grad_enabled() and self._drifts():
                log_t, b = _averaged(log_t, self.group), _averaged(b, self.group)
            log_t = divided_gradient(log_t, self.gradient_divisor)
            b = divided_gradient(b, self.gradient_divisor)
        return log_t.exp(), None if self.bias == "solve" else b

    def _limit(self, log_t: Tensor) -> None:
        """Limit t' itself: a clamped copy would have no gradient."""
        if reads_are_free(log_t) and log_t.item() <= LOG_MAX_T:
            return
        with torch.no_grad():
            log_t.clamp_(max=LOG_MAX_T)

    def _drifts(self) -> bool:
        """Whether each process would change t and b by the gradient of its own rows.

        A gathered loss has the same gradient on all processes, and DistributedDataParallel averages
        the parameters inside it.
        """
        return (
            not self.gather_across_devices
            and several_processes(self.group)
            and not torch.compiler.is_compiling()
            and not inside_data_parallel()
        )

    def store_bias(self, b: Tensor) -> None:
        """Store b if it was solved, so that `boundary` has a value after training."""
        if not self.training or self.bias != "solve":
            return
        if torch.compiler.is_compiling() or not transformed(b):
            self.b.copy_(b)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Convert or move the module; t' and b never have less than float32."""
        _use_float32_if_needed([self.log_t, self.b], fn)
        exact = {name: getattr(self, name).detach() for name in NAMES}
        result = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name in NAMES:
            converted = getattr(self, name)
            if converted.dtype in (torch.float16, torch.bfloat16):
                converted.data = exact[name].to(converted.device, torch.float32)
        return result


def _averaged(scalar: Tensor, group: Group) -> Tensor:
    return average_gradients(scalar, group=group)[0] if scalar.requires_grad else scalar


def _use_float32_if_needed(scalars: Iterable[Tensor], fn: Callable[[Tensor], Tensor]) -> None:
    """Convert float64 scalars if their new device, such as Apple's mps, lacks float64."""
    try:
        fn(torch.zeros(1, dtype=torch.float64, device="cpu"))
    except TypeError:
        for scalar in scalars:
            scalar.data = scalar.data.float()


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[ParameterGroup]:
    """Return two groups of parameters: matrices with weight decay, all others without.

    The others are biases, the weights of normalisation layers, and t and b of a loss, which decay
    would pull towards 1 and 0. timm's optimisers and the Hugging Face Trainer leave out t and b by
    their names; for other loops and optimisers:

        optimizer = AdamW(weight_decay_groups(model, 0.05), lr=1e-3)

    Args:
        model: contains the loss if t and b are learned.
        weight_decay: of the matrices.
    """
    learnable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in learnable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in learnable if p.ndim <= 1], "weight_decay": 0.0},
    ]


@torch.no_grad()
def batch_statistics(pairs: Pairs, rows: Tensor) -> dict[str, float]:
    """Return the share of positive pairs, rows without positives, and mean cosines of pairs.

    The mean cosines are those of pairs of two different rows of this process; they are left out if
    there are references.

    Args:
        pairs: the pairs of a batch.
        rows: `(n, d)` common fields of this process.
    """
    if pairs.by_label:
        layout = pairs.layout
        total, positive = map(float, layout.count(pairs.self_weight > 0))
        number = members(layout.left.labels, layout.right) - int(layout.contains_self)
    else:
        total, positive = map(float, pairs.totals(rows.device))
        number = torch.cat([pairs.positives(band, rows.dtype).sum(1) for band in pairs.bands()])
    values = {
        "positive_share": positive / total if total else 0.0,
        "anchors_without_positives": float((number == 0).sum()),
    }
    if pairs.references is not None:
        return values
    cosines = (
        _label_cosines(rows, pairs.labels) if pairs.labels is not None else _cosines(pairs, rows)
    )
    named = zip(("positive_cosine", "negative_cosine"), cosines, strict=True)
    return values | {name: value for name, value in named if not math.isnan(value)}


def _label_cosines(rows: Tensor, labels: Tensor) -> tuple[float, float]:
    """As `_cosines`, from sums over classes: Σ x_u·x_v over the pairs of a class is ‖Σ x_u‖²."""
    x = torch.nn.functional.normalize(rows.to(wide(rows)), dim=1)
    classes, index = torch.unique(labels, return_inverse=True)
    sums = x.new_zeros(len(classes), x.shape[1]).index_add_(0, index, x)
    square = float(x.square().sum())  # of pairs (u, u)
    same = float(sums.square().sum()) - square
    total = float(x.sum(0).square().sum()) - square
    positive = float(torch.bincount(index).square().sum()) - len(x)
    return _ratio(same, positive), _ratio(total - same, len(x) * (len(x) - 1) - positive)


def _cosines(pairs: Pairs, rows: Tensor) -> tuple[float, float]:
    """Return the mean cosine of positive and of negative pairs, weighted by q and 1 − q, or NaN."""
    x = torch.nn.functional.normalize(rows.to(wide(rows)), dim=1)
    sums = torch.zeros(4, dtype=x.dtype, device=x.device)
    for band in pairs.bands():
        q = pairs.targets(band)[0].to(x.dtype)
        others = (~pairs.itself(band, x.device)).to(x.dtype)
        r = x[band] @ x.T
        parts = (q * others, (1 - q) * others)
        sums += torch.stack([total for w in parts for total in ((w * r).sum(), w.sum())])
    same, positive, different, negative = sums.tolist()
    return _ratio(same, positive), _ratio(different, negative)


def _ratio(total: float, count: float) -> float:
    return total / count if count > 1e-9 else math.nan
