"""The only training loop. It serves both stages and every method, on one process or many.

Nothing in this file has to do with images, contrast or folders: a `Stage` says what is trained
and how, `Hooks` are told what happened, and `Progress` says where to begin. The loop may begin at
any step of any epoch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.training.distributed import local_parameters, share_buffers, sum_gradients

Group = dict[str, Any]
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


@dataclass
class Progress:
    """Where a stage stands: `step` steps of epoch `epoch` are done, `global_step` in all."""

    epoch: int = 0
    step: int = 0
    global_step: int = 0


@dataclass(frozen=True)
class Stage:
    """What one stage trains, and how.

    Attributes:
        name: "pretrain" or "probe".
        modules: all that trains, by name; those set up with Fabric have their gradients summed
            over processes, the others (t and b) get gradients that the loss has joined already.
        losses: from a batch to named terms; their sum is minimised. Several processes: the value of
            the joined batch, with the gradient of this process's rows.
        optimizer: from `make_optimizer`, set up with Fabric.
        schedule: from the global step to the learning rate.
        batches: from (epoch, number of batches to skip) to batches on the right device.
        epochs: how many.
        clip_norm: largest norm of the gradient of all parameters together; 0 does not clip.
    """

    name: str
    modules: Mapping[str, nn.Module]
    losses: Callable[[Any], dict[str, Tensor]]
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int], float]
    batches: Callable[[int, int], Iterable[Any]]
    epochs: int
    clip_norm: float = 0.0


def _nothing(*_: Any) -> None:
    """Do nothing: the hook of those who want none."""


@dataclass(frozen=True)
class Hooks:
    """Called by the loop; `progress` always says where to go on, so a hook may save it as it is.

    `before_epoch` is left out when an epoch is taken up in its midst: what it did to the modules is
    part of their state. `after_epoch` comes when `progress` points at the next epoch.
    """

    before_epoch: Callable[[Progress], None] = field(default=_nothing)
    after_step: Callable[[Progress, dict[str, float]], None] = field(default=_nothing)
    after_epoch: Callable[[Progress], None] = field(default=_nothing)


class NonFinite(UserError):
    """The loss or its gradient stopped being a number; the weights are as before the step."""

    def __init__(self, what: str, progress: Progress, batch: Any):
        """Name the place and the batch."""
        indices = getattr(batch, "indices", None)
        self.epoch, self.step = progress.epoch, progress.step
        self.indices: list[int] = indices.tolist() if isinstance(indices, Tensor) else []
        super().__init__(
            f"epoch {self.epoch + 1}, step {self.step + 1}: {what}. Indices of the batch: "
            f"{', '.join(map(str, self.indices)) or 'not known'}. The weights were not touched. "
            "Look at these items, lower the learning rate, or clip the gradient (clip_norm = 1)."
        )


def optimise(fabric: Fabric, stage: Stage, progress: Progress, hooks: Hooks) -> None:
    """Train `stage` from where `progress` stands to its last epoch; `progress` moves along."""
    local = local_parameters(stage.modules.values()) if fabric.world_size > 1 else []
    while progress.epoch < stage.epochs:
        if progress.step == 0:
            hooks.before_epoch(progress)
        for module in stage.modules.values():
            module.train()
        for batch in _fetch(stage.batches(progress.epoch, progress.step)):
            terms = _take_step(fabric, stage, batch, progress, local)
            progress.step += 1
            progress.global_step += 1
            hooks.after_step(progress, terms)
        if fabric.world_size > 1:
            share_buffers(stage.modules.values())
        progress.epoch += 1
        progress.step = 0
        hooks.after_epoch(progress)


def _take_step(
    fabric: Fabric, stage: Stage, batch: Any, progress: Progress, local: list[nn.Parameter]
) -> dict[str, float]:
    optimizer = stage.optimizer
    lr = stage.schedule(progress.global_step)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]

    optimizer.zero_grad()
    try:
        named = stage.losses(batch)
    except UserError as error:  # a loss that looks at its input has found it first
        raise NonFinite(str(error), progress, batch) from error
    terms = torch.stack(tuple(named.values()))
    fabric.backward(terms.sum())
    if local:
        sum_gradients(local)
    norm = _clip(fabric, stage)

    # One transfer from the device for all that has to be looked at.
    *values, size = torch.cat((terms.detach(), norm.to(terms.dtype)[None])).tolist()
    numbers = dict(zip(named, values, strict=True))
    if not all(map(math.isfinite, values)) or not (math.isfinite(size) or _will_rescale(fabric)):
        listed = ", ".join(f"{name} = {value:g}" for name, value in numbers.items())
        raise NonFinite(f"not finite: {listed}, gradient = {size:g}", progress, batch)
    optimizer.step()
    return numbers


def _clip(fabric: Fabric, stage: Stage) -> Tensor:
    """Make the norm of all gradients at most `clip_norm`, and return what it was.

    Without clipping their sum is returned: it is as finite as they are, and quicker to have.
    """
    if stage.clip_norm > 0:
        network = next(iter(stage.modules.values()))  # asked for by Fabric, not what is clipped
        norm = fabric.clip_gradients(
            network, stage.optimizer, max_norm=stage.clip_norm, error_if_nonfinite=False
        )
        assert norm is not None  # it is, whenever max_norm is given
        return norm
    parameters = (p for group in stage.optimizer.param_groups for p in group["params"])
    sums = [p.grad.sum() for p in parameters if p.grad is not None]
    return torch.stack(sums).sum() if sums else torch.zeros((), device=fabric.device)


def _will_rescale(fabric: Fabric) -> bool:
    """Whether float16's gradient scaler will skip this step and try again with a smaller scale."""
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    return scaler is not None and scaler.get_scale() >= 1


def _fetch(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches; loading them leaves the randomness of training (dropout) alone.

    A data loader draws a seed whenever it starts. Without this, an epoch taken up in its midst
    would draw once more than an unbroken one.
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
    """Return the learning rate: linear up to `base` in `warmup` steps, then a cosine to `floor`."""
    if step < warmup:
        return base * (step + 1) / warmup
    share = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (base - floor) * (1 + math.cos(math.pi * share)) / 2


def parameter_groups(modules: Iterable[nn.Module], lr: float, weight_decay: float) -> list[Group]:
    """Return optimiser groups: weights decay; biases, norms and other vectors do not.

    A module with `param_groups(lr, weight_decay)` of its own (a method) is asked; one with
    `no_weight_decay()` (timm's transformers) names further parameters to spare, such as position
    embeddings.
    """
    decayed: dict[nn.Parameter, None] = {}
    spared: dict[nn.Parameter, None] = {}
    groups: list[Group] = []
    for module in modules:
        own: Any = getattr(module, "param_groups", None)
        if own is not None:
            groups += own(lr, weight_decay)
            continue
        for part in module.modules():
            spare: Any = getattr(part, "no_weight_decay", set)
            names = spare()
            spared |= {p: None for name, p in part.named_parameters() if name in names}
            for parameter in part.parameters(recurse=False):
                small = parameter.ndim <= 1 or isinstance(part, NORMS)
                (spared if small else decayed)[parameter] = None
    weights = [p for p in decayed if p.requires_grad and p not in spared]
    vectors = [p for p in spared if p.requires_grad]
    plain: list[Group] = [
        {"params": weights, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return [group for group in (*plain, *groups) if group["params"]]


def make_optimizer(
    name: str, groups: Sequence[Group], lr: float, momentum: float = 0.9
) -> torch.optim.Optimizer:
    """Return "sgd" or "adamw"; a group with an `lr` of its own keeps its ratio to the others."""
    scaled = [{**group, "lr_scale": group.get("lr", lr) / lr if lr else 1.0} for group in groups]
    if name == "sgd":
        return torch.optim.SGD(scaled, lr=lr, momentum=momentum)
    if name == "adamw":
        return torch.optim.AdamW(scaled, lr=lr, betas=(momentum, 0.999))
    raise UserError(f"unknown optimizer {name!r}: use 'sgd' or 'adamw'")
