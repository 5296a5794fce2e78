"""One process or many: where a run computes, and how processes join their gradients."""

import atexit
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.wrappers import is_wrapped
from torch import Tensor, distributed, nn

from scs_supcon.device import check_device
from scs_supcon.errors import UserError

# The first process computes the features of a frozen encoder while the others wait.
PATIENCE = timedelta(days=1)


class SummedGradients(DDPStrategy):
    """Several processes, each with its rows of every batch.

    There is no DistributedDataParallel: it averages where the joined loss needs a sum, and it fails
    on a parameter that reaches the output but not the loss. The loop sums what there is.
    """

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Return the module itself, with the first process's values."""
        _broadcast((*module.parameters(), *module.buffers()))
        return module


def make_fabric(device: str = "auto", precision: str = "32-true") -> Fabric:
    """Return a launched Fabric; started by torchrun, this process is one of several.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:1". Apple's "mps" has no float64, which exact sums
            need.
        precision: "32-true", "bf16-mixed", "16-mixed" or "64-true".
    """
    check_device(device)
    kind, _, number = device.partition(":")
    kind = _best_device() if kind == "auto" else kind
    _check_device(kind, device, precision)
    world = int(os.environ["WORLD_SIZE"]) if distributed.is_torchelastic_launched() else 1
    options: dict[str, Any] = {"accelerator": kind, "precision": precision}
    if world > 1:
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        options |= {
            "devices": here,
            "num_nodes": world // here,
            "strategy": SummedGradients(timeout=PATIENCE),
        }
    else:
        options |= {"devices": [int(number)] if number else 1}
    fabric = Fabric(**options)
    fabric.launch()
    if world > 1:
        atexit.register(_leave)
    return fabric


def _leave() -> None:
    """Close the group: its threads would abort a process that ends under them."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"


def _check_device(kind: str, device: str, precision: str) -> None:
    there = {"cpu": True, "cuda": torch.cuda.is_available()}
    if not there.get(kind, False):
        usable = ", ".join(name for name, ok in there.items() if ok)
        raise UserError(f"device {device!r} is not available here: use one of auto, {usable}")
    if kind == "cpu" and precision == "16-mixed":
        raise UserError("precision 16-mixed needs a GPU: use bf16-mixed or 32-true on the CPU")


def local_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters set up with Fabric: each process has only its own rows' gradient."""
    wrapped = (part for module in modules for part in module.modules() if is_wrapped(part))
    return list(dict.fromkeys(p for part in wrapped for p in part.parameters() if p.requires_grad))


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all processes."""
    _exchange((p.grad for p in parameters if p.grad is not None), distributed.all_reduce)


def gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, in their order; all have one shape."""
    if not distributed.is_initialized():
        return [tensor]
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor)
    return parts


def share_buffers(modules: Iterable[nn.Module]) -> None:
    """Give every process the first one's batch statistics, so that all evaluate one network."""
    _broadcast(buffer for module in modules for buffer in module.buffers())


def _broadcast(tensors: Iterable[Tensor]) -> None:
    _exchange(tensors, lambda flat: distributed.broadcast(flat, src=0))


def _exchange(tensors: Iterable[Tensor], communicate: Callable[[Tensor], Any]) -> None:
    """Let processes communicate the tensors in place, in one message for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
    for alike in by_dtype.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        communicate(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
