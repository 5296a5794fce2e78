"""When a stage saves checkpoints, and how it stops on a signal."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from lightning_fabric import Fabric
from pydantic import BaseModel

from scs_supcon.data.dataloader import start_worker
from scs_supcon.errors import UserError
from scs_supcon.io.typed import validate
from scs_supcon.io.values import ValueTree
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.loop import Stage, TrainPosition
from scs_supcon.training.train_state import capture_state, restore_state


class Stopped(Exception):
    """A signal stopped the run, and a checkpoint was saved. `exit_code` is 143 or 130."""

    def __init__(self, exit_code: int):
        """Set the exit code and a message that explains how to resume."""
        self.exit_code = exit_code
        super().__init__("stopped; run the same command again to resume")


@dataclass(frozen=True)
class SavePolicy:
    """How often to save, in seconds of training.

    Attributes:
        every: interval between checkpoints within an epoch.
        at_most: longest interval when saving is slow, so that less than a minute can be lost.
        share: share of the time that saving may take; not every short epoch is saved.
    """

    every: float = 30.0
    at_most: float = 50.0
    share: float = 0.02

    def due(self, waited: float, cost: float, epoch_end: bool) -> bool:
        """Return whether to save after `waited` unsaved seconds if saving takes `cost` seconds."""
        affordable = cost / self.share
        interval = affordable if epoch_end else max(self.every, affordable)
        return waited >= min(interval, self.at_most)


class BestEpoch(BaseModel):
    """The epoch with the highest validation accuracy; the accuracy last rose in epoch `risen`."""

    accuracy: float
    epoch: int
    risen: int


class StageMemo(BaseModel):
    """What a stage remembers between epochs: numbers of the method, the best epoch, early stop.

    `pair_steps` has step, t and b of the steps of this epoch, which its end writes to the metrics.
    """

    scalars: Mapping[str, int | float] = {}
    pair_steps: list[tuple[int, float, float]] = []
    best: BestEpoch | None = None
    stopped: bool = False


class SavedMemo(BaseModel):
    """The memo of a stage, and sums of its loss terms over the steps since the last means."""

    memo: StageMemo
    sums: dict[str, float]
    steps: int


class CheckpointManager:
    """Restores a stage from its checkpoint, saves it during training, and stops it on a signal.

    ```
    with CheckpointManager(run, fabric, stage) as checkpoints:
        train_loop(fabric, stage, checkpoints.position, Hooks(checkpoints.after_step, ...))
    ```

    Attributes:
        position: current position of the stage.
        memo: further values that the stage stores in its checkpoints.
    """

    def __init__(self, run: RunDir, fabric: Fabric, stage: Stage, policy: SavePolicy | None = None):
        """Store the checkpoints of `stage` in `run`."""
        self.position = TrainPosition()
        self.memo = StageMemo()
        self._run, self._fabric, self._stage = run, fabric, stage
        self._policy = policy or SavePolicy()
        self._sums: dict[str, float] = {}
        self._steps = 0
        self._cost = 0.0
        self._saved_position = TrainPosition()
        self._signals = _StopSignals()

    def __enter__(self) -> Self:
        """Restore the stage and handle SIGTERM and Ctrl-C."""
        checkpoint = self._run.load_checkpoint(self._stage.name)
        if checkpoint:
            self.position, values = restore_state(self._fabric, self._stage, checkpoint)
            memo = validate(SavedMemo, values, f"the checkpoint of stage {self._stage.name}")
            self.memo, self._sums, self._steps = memo.memo, memo.sums, memo.steps
        self._check_processes_agree()
        self._mark_saved()
        self._signals.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save unsaved progress; raise `Stopped` if a signal ended the stage.

        A `UserError` is not replaced: a failed save must not be reported as a saved run.
        """
        try:
            if error is None and self.position != self._saved_position:
                self.save()
        finally:
            self._signals.uninstall()
        interrupted = isinstance(error, Exception) and not isinstance(error, UserError)
        if self._signals.exit_code and (error is None or interrupted):
            raise Stopped(self._signals.exit_code) from error

    def after_step(self, position: TrainPosition, terms: dict[str, float]) -> None:
        """Hook: add to the means; save or stop if due."""
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps += 1
        self._save_or_stop(epoch_end=False)

    def after_epoch(self, position: TrainPosition) -> None:
        """Hook: save or stop if due. Write the metrics of the epoch first."""
        self._save_or_stop(epoch_end=True)

    def means(self) -> dict[str, float]:
        """Return the mean of each term since the last call, including steps before a restart."""
        means = {name: value / self._steps for name, value in self._sums.items()}
        self._sums, self._steps = {}, 0
        return means

    def save(self) -> None:
        """Save now. Every process has to call this."""
        start = time.monotonic()
        values = self.memo.model_dump(exclude_unset=True)
        memo: ValueTree = {"memo": values, "sums": self._sums, "steps": self._steps}
        checkpoint = capture_state(self._fabric, self._stage, self.position, memo)
        self._run.save_checkpoint(self._stage.name, checkpoint)
        self._mark_saved()
        self._cost = self._saved_time - start

    def _mark_saved(self) -> None:
        self._saved_position = replace(self.position)
        self._saved_time = self._last_check = time.monotonic()

    def _save_or_stop(self, epoch_end: bool) -> None:
        now = time.monotonic()
        # The next check comes after another step, which may take as long as the last one.
        waited = (now - self._saved_time) + (now - self._last_check)
        self._last_check = now
        request = self._signals.exit_code or int(self._policy.due(waited, self._cost, epoch_end))
        request = self._max_over_processes(request)
        if request and self.position != self._saved_position:
            self.save()
        if request > 1:
            raise Stopped(request)

    def _max_over_processes(self, number: int) -> int:
        """Return the maximum over all processes, so that all take the same action."""
        if self._fabric.world_size == 1:
            return number
        tensor = torch.tensor(number, device=self._fabric.device)
        reduced = self._fabric.all_reduce(tensor, reduce_op="max")
        assert isinstance(reduced, torch.Tensor)
        return int(reduced)

    def _check_processes_agree(self) -> None:
        step = self.position.global_step
        if self._max_over_processes(step) != -self._max_over_processes(-step):
            raise UserError(
                f"the processes of this run found different checkpoints in {self._run.path}: "
                "all machines need to share this directory"
            )


class _StopSignals:
    """Records SIGTERM and Ctrl-C for the loop; a second Ctrl-C ends the process immediately."""

    def __init__(self) -> None:
        self.exit_code = 0
        self._received = 0.0
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._record)

    def uninstall(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _record(self, number: int, _: FrameType | None) -> None:
        # One Ctrl-C may arrive twice, from the terminal and from a parent that passes it on.
        if number == signal.SIGINT and self.exit_code and time.monotonic() - self._received > 0.5:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.exit_code:
            self.exit_code, self._received = 128 + number, time.monotonic()


def ignore_signals(worker: int = 0) -> None:
    """Ignore stop signals in a data loader worker (`worker_init_fn`): the main process stops it.

    The first SIGTERM is the one sent to the whole process group. A second one ends the worker:
    otherwise a failing process could not end its workers.
    """
    start_worker(worker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
