"""Temperature t and bias b of a sigmoid pair loss: learned, fixed or solved.

    scale "multiply":  a = t r − b, boundary b/t
    scale "divide":    a = r/t − b, boundary b·t

t = exp(t'). Both are tensors of shape (1,), because FSDP does not accept scalars. They are float64,
which costs nothing for two numbers and makes t equal t0 in every digit, and stay float32 or better
if the module is converted to half precision, where small updates would be rounded away. They are
registered as `bias_log_t` and `bias_b`: the Hugging Face Trainer, for example, decays every
parameter whose name does not contain "bias" or "norm".
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import Weighting
from scs_supcon.kernels.autograd import reads_are_free, transformed
from scs_supcon.kernels.gather import (
    average_gradients,
    divided_gradient,
    inside_data_parallel,
    several_processes,
)
from scs_supcon.methods.shared.base import Method, check_not_negative, check_one_of, check_positive
from scs_supcon.methods.shared.unused_parameters import UnusedParameterCheck
from scs_supcon.methods.shared.weight_decay import ParameterGroup

Scale = Literal["multiply", "divide"]
Bias = Literal["learn", "fixed", "solve"]

LOG_MAX_SCALE = math.log(100.0)  # t' is limited so that similarities are multiplied by at most 100
NAMES = {"log_t": "bias_log_t", "b": "bias_b"}  # attribute: name of the parameter


class PairPreset(TypedDict):
    """Arguments of a sigmoid pair loss that belong together."""

    pairs: Weighting
    t0: float
    b0: float
    learn: tuple[str, ...]
    bias: Bias


class PairScalars(Method):
    """A method with t' (`log_t`) and b; a subclass calls `set_scalars` in its constructor."""

    bias_log_t: nn.Parameter
    bias_b: Tensor
    bias: Bias
    scale: Scale
    learn: tuple[str, ...]
    gradient_divisor = 1  # of t' and b, for wrappers that multiply the loss by a number

    def set_scalars(
        self,
        t0: float,
        b0: float,
        *,
        bias: Bias,
        learn: tuple[str, ...],
        scale: Scale,
        lr_t: float,
        lr_b: float,
    ) -> None:
        """Check the initial values and create t' and b."""
        check_one_of("scale", scale, ("multiply", "divide"))
        check_positive(t0=t0)
        check_not_negative(lr_t=lr_t, lr_b=lr_b)
        self.bias, self.learn, self.scale = bias, learn, scale
        self.lr_t, self.lr_b = lr_t, lr_b
        if math.log(t0) * self._sign > LOG_MAX_SCALE:
            limit = "t0 ≤ 100" if scale == "multiply" else "t0 ≥ 0.01"
            raise UserError(
                f"{limit} is required, got t0 = {t0}: similarities are multiplied by at most 100"
            )
        if not math.isfinite(b0):
            raise UserError(f"b0 must be finite, got {b0}")
        log_t = torch.tensor([math.log(t0)], dtype=torch.float64, device="cpu")
        self.register_parameter(NAMES["log_t"], nn.Parameter(log_t, requires_grad="t" in learn))
        initial_b = torch.tensor([b0], dtype=torch.float64, device="cpu")
        if bias == "learn":
            self.register_parameter(NAMES["b"], nn.Parameter(initial_b))
        else:
            self.register_buffer(NAMES["b"], initial_b)
        self._unused = UnusedParameterCheck()

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
        b = self.b.detach().reshape(())
        return b / self.t if self.scale == "multiply" else b * self.t

    def extra_repr(self) -> str:
        """Return the arguments of the constructor, and the current t and b."""
        scalars = f"t={float(self.t):.4g}, b={float(self.b.detach()):.4g}"
        return ", ".join(filter(None, [super().extra_repr(), scalars]))

    def scalars(self) -> dict[str, float]:
        """Return t, b and the boundary."""
        t, b, boundary = torch.stack([self.t, self.b.detach().reshape(()), self.boundary]).tolist()
        return {"t": t, "b": b, "boundary": boundary}

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[ParameterGroup]:
        """Return t' and b for an optimiser, without weight decay, which would pull t towards 1."""
        if self.lr_t == self.lr_b == 1:
            return super().param_groups(lr, 0.0)
        factors = {self.log_t: self.lr_t, self.b: self.lr_b}
        return [
            {"params": [p], "lr": lr * factors.get(p, 1.0), "weight_decay": 0.0}
            for p in sorted(self.parameters(), key=lambda p: p.ndim <= 1)  # as in `Method`
            if p.requires_grad
        ]

    def _scalars(self) -> tuple[Tensor, Tensor | None]:
        """Return the factor of the similarity, t or 1/t, and b unless it is to be solved."""
        log_t, b = self.log_t, self.b
        self._limit(log_t)
        learning = self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        shared_t, shared_b = self._averaged(log_t, b) if learning and self._drifts() else (log_t, b)
        shared_t = divided_gradient(shared_t, self.gradient_divisor)
        t = (shared_t if self.scale == "multiply" else -shared_t).exp().reshape(())
        if learning:
            self._unused.track("log_t", log_t, t)
        if self.bias == "solve":
            return t, None
        shared_b = divided_gradient(shared_b, self.gradient_divisor).reshape(())
        if learning:
            self._unused.track("b", b, shared_b)
        return t, shared_b

    def _limit(self, log_t: Tensor) -> None:
        """Limit t' itself: a clamped copy would have no gradient."""
        sign = self._sign
        if reads_are_free(log_t) and log_t.item() * sign <= LOG_MAX_SCALE:
            return
        limit = LOG_MAX_SCALE * sign
        with torch.no_grad():
            log_t.clamp_(**({"max": limit} if sign > 0 else {"min": limit}))

    def _drifts(self) -> bool:
        """Whether each process would change t and b by the gradient of its own rows.

        A gathered loss has the same gradient on all processes, and DistributedDataParallel averages
        the parameters inside it.
        """
        return (
            not self.gather_across_devices
            and several_processes(self.group)
            and (self.log_t.requires_grad or self.b.requires_grad)
            and not inside_data_parallel()
        )

    def _averaged(self, log_t: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        learned = [x for x in (log_t, b) if x.requires_grad]
        averaged = iter(average_gradients(*learned, group=self.group))
        log_t = next(averaged) if log_t.requires_grad else log_t
        return log_t, next(averaged) if b.requires_grad else b

    @property
    def _sign(self) -> int:
        return 1 if self.scale == "multiply" else -1

    def _store(self, b: Tensor) -> None:
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


def _use_float32_if_needed(scalars: Iterable[Tensor], fn: Callable[[Tensor], Tensor]) -> None:
    """Convert float64 scalars if their new device, such as Apple's mps, lacks float64."""
    try:
        fn(torch.zeros(1, dtype=torch.float64, device="cpu"))
    except TypeError:
        for scalar in scalars:
            scalar.data = scalar.data.float()


def resolve_bias(
    preset: PairPreset, learn: Sequence[str] | None, bias: Bias | None
) -> tuple[Bias, tuple[str, ...]]:
    """Return (bias, learn): arguments override the preset, and both must agree."""
    if bias is not None:
        check_one_of("bias", bias, ("learn", "fixed", "solve"))
    names = tuple(preset["learn"] if learn is None else learn)
    for name in names:
        check_one_of("learn", name, ("t", "b"))
    if learn is None and bias is not None:
        names = tuple(n for n in names if n != "b") + (("b",) if bias == "learn" else ())
    if bias is None:
        unlearned: Bias = "fixed" if preset["bias"] == "learn" else preset["bias"]
        bias = "learn" if "b" in names else unlearned
    if (bias == "learn") != ("b" in names):
        raise UserError(
            f"bias={bias!r} contradicts learn={names}: learn contains 'b' exactly if bias='learn'"
        )
    return bias, names
