"""The weights that a stage ends with.

The last ones, their running average, or those of the best epoch; these may be averaged with the
weights that the stage started from (WiSE-FT, Wortsman et al. 2022).
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from scs_supcon.methods import Method, Network
from scs_supcon.training.checkpointing import BestEpoch, StageMemo


class WeightCopy(nn.Module):
    """A copy of network and method, without gradients, that is saved with the checkpoints.

    Args:
        network: is copied.
        method: is copied.
    """

    def __init__(self, network: Network, method: Method) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).requires_grad_(False)
        self.method = copy.deepcopy(method).requires_grad_(False)

    @torch.no_grad()
    def move_towards(self, network: nn.Module, method: nn.Module, share: float = 1.0) -> None:
        """Move every number by `share` of its distance to the given modules; 1 copies them.

        Buffers are included, so that the running statistics of batch normalisation fit the
        weights. Integers are copied.
        """
        for own, other in (*_pairs(self.network, network), *_pairs(self.method, method)):
            if own.is_floating_point() and share < 1:
                own.lerp_(other.to(own), share)
            else:
                own.copy_(other)

    @torch.no_grad()
    def load_into(self, network: nn.Module, method: nn.Module, share: float = 1.0) -> None:
        """Move the given modules by `share` of their distance to this copy; 1 copies it.

        Buffers are included. Integers change only if they are copied.
        """
        for own, other in (*_pairs(self.network, network), *_pairs(self.method, method)):
            if share == 1:
                other.copy_(own)
            elif other.is_floating_point():
                other.lerp_(own.to(other), share)


def ema_decay(decay: float, step: int) -> float:
    """Return min(decay, (1 + step)/(10 + step)), the weight of the average in step 0, 1, 2, ….

    The ramp lets the average forget the initial weights, also in short runs.
    """
    return min(decay, (1 + step) / (10 + step))


class FinalWeights:
    """Keeps the running average and the best epoch of network and method during training.

    The best epoch is the one with the highest validation accuracy, the latest of several. Its
    state is in `memo` and `copies`, which the checkpoints of the stage contain.

    Args:
        network: the trained network.
        method: the trained method.
        ema: decay of the running average; 0 means no average.
        patience: stop after this many epochs in which the accuracy has not risen; 0 means never.
        validate: (network, method) -> validation accuracy; needed if `patience` is set.
        initial_share: share of the weights that network and method have now in the final ones.
    """

    def __init__(
        self,
        network: Network,
        method: Method,
        ema: float = 0.0,
        patience: int = 0,
        validate: Callable[[Network, Method], float] | None = None,
        initial_share: float = 0.0,
    ) -> None:
        if patience and validate is None:
            raise ValueError("patience needs a validation set")
        self.network, self.method = network, method
        self.ema, self.patience, self.validate = ema, patience, validate
        self.initial_share = initial_share
        self.initial = WeightCopy(network, method) if initial_share else None
        self.average = WeightCopy(network, method) if ema else None
        self.best = WeightCopy(network, method) if patience else None

    @property
    def copies(self) -> dict[str, nn.Module]:
        """The copies to save with the checkpoints, by name."""
        named = {"initial": self.initial, "average": self.average, "best": self.best}
        return {name: module for name, module in named.items() if module is not None}

    def after_step(self, step: int) -> None:
        """Update the running average after step `step`, counted from 0."""
        if self.average is not None:
            decay = ema_decay(self.ema, step)
            self.average.move_towards(self.network, self.method, 1 - decay)

    def after_epoch(self, epoch: int, memo: StageMemo) -> dict[str, float]:
        """Measure epoch `epoch`, counted from 1, and return the values to log."""
        if self.best is None or self.validate is None:
            return {}
        network, method = self._current()
        accuracy = self.validate(network, method)
        best = memo.best or BestEpoch(accuracy=-1.0, epoch=0, risen=0)
        if accuracy >= best.accuracy:
            self.best.move_towards(network, method)
            risen = epoch if accuracy > best.accuracy else best.risen
            best = memo.best = BestEpoch(accuracy=accuracy, epoch=epoch, risen=risen)
        memo.stopped = epoch - best.risen >= self.patience
        return {"val_accuracy": accuracy}

    def describe(self, best: BestEpoch | None, done: int, epochs: int) -> list[str]:
        """Return lines on the final weights; arguments are those of `describe_best`."""
        share = self.initial_share
        lines = [describe_best(best, done, epochs)] if best else []
        if share:
            lines.append(f"weights   {share:g} × initial + {1 - share:g} × trained, averaged")
        return lines

    def finish(self) -> None:
        """Give network and method their final weights."""
        if self.best is not None:
            self.best.load_into(self.network, self.method)
        elif self.average is not None:
            self.average.load_into(self.network, self.method)
        if self.initial is not None:
            self.initial.load_into(self.network, self.method, self.initial_share)

    def _current(self) -> tuple[Network, Method]:
        """Return the averaged modules, or the trained ones without an average."""
        if self.average is None:
            return self.network, self.method
        return self.average.network, self.average.method


def describe_best(best: BestEpoch, done: int, epochs: int) -> str:
    """Return a line about the best epoch.

    Args:
        best: the epoch.
        done: number of trained epochs.
        epochs: number of epochs of the stage.
    """
    early = f"stopped after epoch {done} of {epochs}: " if done < epochs else ""
    return (
        f"weights   {early}best validation accuracy {best.accuracy:.1%} in epoch "
        f"{best.epoch}, whose weights are used"
    )


def _pairs(first: nn.Module, second: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the parameters and buffers of two modules of the same structure."""
    tensors = ((*module.parameters(), *module.buffers()) for module in (first, second))
    return zip(*tensors, strict=True)
