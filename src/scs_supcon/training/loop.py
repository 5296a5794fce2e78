"""The training loop of both stages and of every method, in one process or several.

The loop does not depend on images, losses or run directories: a `Stage` defines what to train,
`Hooks` are called as training proceeds, and a `TrainPosition` is the step to start from, which can
be any step of any epoch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from scs_supcon.errors import NonFiniteError, UserError
from scs_supcon.methods.shared.base import ParameterGroup
from scs_supcon.training.distributed import local_parameters, share_buffers, sum_gradients
from scs_supcon.training.lars import LARS

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


@dataclass
class TrainPosition:
    """Position in a stage: `step` steps of epoch `epoch` are done, `global_step` in total."""

    epoch: int = 0
    step: int = 0
    global_step: int = 0


@dataclass(frozen=True)
class Stage:
    """What one stage trains, and how.

    Attributes:
        name: "head", "pretrain", "probe" or "linear"; names checkpoints and metrics.
        modules: all trained modules by name. The gradients of modules set up with Fabric are
            summed over processes; those of the others (t and b) are already complete.
        losses: batch -> named terms, whose sum is minimised. With several processes, the value is
            that of the gathered batch and the gradient that of this process's rows.
        optimizer: from `make_optimizer`, set up with Fabric.
        schedule: global step -> learning rate.
        batches: (epoch, number of batches to skip) -> batches on the right device.
        epochs: number of epochs.
        clip_norm: maximum norm of the gradient of all parameters together; 0 disables clipping.
    """

    name: str
    modules: Mapping[str, nn.Module]
    losses: Callable[[Any], dict[str, Tensor]]
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]
    batches: Callable[[int, int], Iterable[Any]]
    epochs: int
    clip_norm: float = 0.0


def _do_nothing(*_: Any) -> None:
    """Do nothing (the default hook)."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the loop. Their `position` is always the one to resume from.

    `before_epoch` is not called when an epoch is resumed: its effect on the modules is part of
    their state. `after_epoch` is called when `position` points at the next epoch. Training ends
    before the last epoch if `stop` returns True between two epochs.
    """

    before_epoch: Callable[[TrainPosition], None] = _do_nothing
    after_step: Callable[[TrainPosition, dict[str, float]], None] = _do_nothing
    after_epoch: Callable[[TrainPosition], None] = _do_nothing
    stop: Callable[[], bool] = bool


class NonFiniteLossError(NonFiniteError):
    """The loss or its gradient is NaN or infinite; the weights are those before the step."""

    def __init__(self, reason: str, position: TrainPosition, batch: Any, rng: Tensor):
        """Create a message with the step and the images of the batch.

        Args:
            reason: what is not finite.
            position: the step.
            batch: its data.
            rng: state of the random number generator before the step.
        """
        indices = getattr(batch, "indices", None)
        self.reason, self.batch, self.rng = reason, batch, rng
        self.epoch, self.step = position.epoch, position.step
        self.indices: list[int] = indices.tolist() if isinstance(indices, Tensor) else []
        super().__init__(
            f"epoch {self.epoch + 1}, step {self.step + 1}: {reason}. Indices of the batch: "
            f"{', '.join(map(str, self.indices)) or 'unknown'}. The weights were not changed. "
            "Check these images, lower the learning rate, or clip the gradient (clip_norm = 1)."
        )


def train_loop(fabric: Fabric, stage: Stage, position: TrainPosition, hooks: Hooks) -> None:
    """Train `stage` from `position` to its last epoch, or until `hooks.stop`.

    `position` is updated in place.
    """
    local = local_parameters(stage.modules.values()) if fabric.world_size > 1 else []
    while position.epoch < stage.epochs and not hooks.stop():
        if position.step == 0:
            hooks.before_epoch(position)
        for module in stage.modules.values():
            module.train()
        for batch in _fetch(stage.batches(position.epoch, position.step)):
            terms = _train_step(fabric, stage, batch, position, local)
            position.step += 1
            position.global_step += 1
            hooks.after_step(position, terms)
        if fabric.world_size > 1:
            share_buffers(stage.modules.values())
        position.epoch += 1
        position.step = 0
        hooks.after_epoch(position)


def _train_step(
    fabric: Fabric, stage: Stage, batch: Any, position: TrainPosition, local: list[nn.Parameter]
) -> dict[str, float]:
    optimizer = stage.optimizer
    lr = stage.schedule(position.global_step)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]

    optimizer.zero_grad()
    rng = torch.get_rng_state()
    try:
        named_terms = stage.losses(batch)
    except NonFiniteError as error:  # the loss checks its input
        raise NonFiniteLossError(str(error), position, batch, rng) from error
    terms = torch.stack(tuple(named_terms.values()))
    fabric.backward(terms.sum())
    if local:
        sum_gradients(local)
    gradient = _clip_gradients(fabric, stage)

    # One transfer from the device for all numbers to check.
    *values, gradient_value = torch.cat((terms.detach(), gradient.to(terms.dtype)[None])).tolist()
    numbers = dict(zip(named_terms, values, strict=True))
    gradient_usable = math.isfinite(gradient_value) or _will_rescale(fabric)
    if not all(map(math.isfinite, values)) or not gradient_usable:
        listed = ", ".join(f"{name} = {value:g}" for name, value in numbers.items())
        reason = f"not finite: {listed}, gradient = {gradient_value:g}"
        raise NonFiniteLossError(reason, position, batch, rng)
    optimizer.step()
    return numbers


def _clip_gradients(fabric: Fabric, stage: Stage) -> Tensor:
    """Clip the gradient to `clip_norm` and return a number that is finite only if it is.

    The number is the norm before clipping. Without clipping it is the sum of all entries, which
    takes a third of the time.
    """
    if stage.clip_norm > 0:
        network = next(iter(stage.modules.values()))  # Fabric needs one; all parameters are clipped
        norm = fabric.clip_gradients(
            network, stage.optimizer, max_norm=stage.clip_norm, error_if_nonfinite=False
        )
        assert norm is not None  # Fabric returns it whenever max_norm is given
        return norm
    parameters = (p for group in stage.optimizer.param_groups for p in group["params"])
    sums = [p.grad.sum() for p in parameters if p.grad is not None]
    return torch.stack(sums).sum() if sums else torch.zeros((), device=fabric.device)


def _will_rescale(fabric: Fabric) -> bool:
    """Return whether float16's gradient scaler will skip this step and lower its scale."""
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return scaler is not None and scaler.get_scale() >= 1


def _fetch(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches without changing the random state of training (dropout).

    A data loader draws a seed when it starts. Without this, a resumed epoch would draw one number
    more than an uninterrupted one.
    """
    iterator = None
    while True:
        state = torch.get_rng_state()
        try:
            iterator = iterator or iter(batches)
            batch = next(iterator)
        except StopIteration:
            return
        finally:
            torch.set_rng_state(state)
        yield batch


def cosine_lr(step: int, total: int, warmup: int, base: float, floor: float = 0.0) -> float:
    """Return the learning rate: `warmup` linear steps up to `base`, then a cosine to `floor`."""
    if step < warmup:
        return base * (step + 1) / warmup
    share = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (base - floor) * (1 + math.cos(math.pi * share)) / 2


def parameter_groups(
    modules: Iterable[nn.Module],
    lr: float,
    weight_decay: float,
    rates: Mapping[nn.Parameter, float] | None = None,
) -> list[ParameterGroup]:
    """Return optimiser groups: weight decay for matrices, none for biases, norms and vectors.

    `rates` holds the learning rates of parameters that do not have `lr`, as a share of it.

    A module with a `param_groups(lr, weight_decay)` method (a loss) defines its groups itself.
    A module with `no_weight_decay()` (timm's transformers) names further parameters without decay,
    such as position embeddings.
    """
    decayed: dict[nn.Parameter, None] = {}
    undecayed: dict[nn.Parameter, None] = {}
    groups: list[ParameterGroup] = []
    for module in modules:
        module_groups: Any = getattr(module, "param_groups", None)
        if module_groups is not None:
            groups += module_groups(lr, weight_decay)
            continue
        for submodule in module.modules():
            no_weight_decay: Any = getattr(submodule, "no_weight_decay", set)
            names = no_weight_decay()
            undecayed |= {p: None for name, p in submodule.named_parameters() if name in names}
            for parameter in submodule.parameters(recurse=False):
                small = parameter.ndim <= 1 or isinstance(submodule, NORMS)
                (undecayed if small else decayed)[parameter] = None
    matrices = [p for p in decayed if p.requires_grad and p not in undecayed]
    vectors = [p for p in undecayed if p.requires_grad]
    rates = rates or {}
    plain: list[ParameterGroup] = [
        {"params": chosen, "weight_decay": decay, **({"lr": lr * rate} if rate != 1 else {})}
        for rate in sorted({rates.get(p, 1.0) for p in (*matrices, *vectors)}, reverse=True)
        for parameters, decay in ((matrices, weight_decay), (vectors, 0.0))
        if (chosen := [p for p in parameters if rates.get(p, 1.0) == rate])
    ]
    return [group for group in (*plain, *groups) if group["params"]]


def make_optimizer(
    name: str, groups: Sequence[ParameterGroup], lr: float, momentum: float = 0.9
) -> torch.optim.Optimizer:
    """Return SGD, LARS or AdamW; a group with its own `lr` keeps its ratio to the schedule."""
    scaled: list[ParameterGroup] = []
    for group in groups:
        rate = group.get("lr", lr)
        assert not isinstance(rate, Sequence)
        scaled.append({**group, "lr_scale": rate / lr if lr else 1.0})
    if name == "sgd":
        return torch.optim.SGD(scaled, lr=lr, momentum=momentum)
    if name == "lars":
        return LARS(scaled, lr=lr, momentum=momentum)
    if name == "adamw":
        return torch.optim.AdamW(scaled, lr=lr, betas=(momentum, 0.999))
    raise UserError(f"unknown optimizer {name!r}: use 'sgd', 'lars' or 'adamw'")
