"""When a run saves itself, and how it stops when it is asked to."""

import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from lightning_fabric import Fabric

from scs_supcon.errors import UserError
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.loop import Progress, Stage
from scs_supcon.training.train_state import restore_snapshot, take_snapshot


class Stopped(Exception):
    """The run was asked to stop, and was saved. `exit_code` is 143 or 130."""

    def __init__(self, exit_code: int):
        """Say how to go on."""
        self.exit_code = exit_code
        super().__init__("stopped; run the same line again to go on")


@dataclass(frozen=True)
class SavePolicy:
    """How often to save, in seconds of training.

    Attributes:
        every: between saves within an epoch.
        at_most: the same when saving is slow; the rest of a minute is for the save itself.
        share: of the time may go into saving; at the ends of short epochs, less is saved.
    """

    every: float = 30.0
    at_most: float = 50.0
    share: float = 0.02

    def due(self, waited: float, cost: float, epoch_end: bool) -> bool:
        """Whether to save when `waited` seconds would be lost, and saving takes `cost` seconds."""
        affordable = cost / self.share
        wanted = affordable if epoch_end else max(self.every, affordable)
        return waited >= min(wanted, self.at_most)


class CheckpointManager:
    """Takes a stage up where it was left, saves it as it goes on, and stops it when asked.

    ```
    with CheckpointManager(run, fabric, stage) as keeper:
        optimise(fabric, stage, keeper.progress, Hooks(after_step=keeper.after_step, ...))
    ```

    Attributes:
        progress: where the stage stands.
        memo: whatever else the stage wants to find again; JSON.
    """

    def __init__(self, run: RunDir, fabric: Fabric, stage: Stage, policy: SavePolicy | None = None):
        """Keep `stage` in `run`."""
        self.progress = Progress()
        self.memo: dict[str, Any] = {}
        self._run, self._fabric, self._stage = run, fabric, stage
        self._policy = policy or SavePolicy()
        self._sums: dict[str, float] = {}
        self._steps = 0
        self._cost = 0.0
        self._saved_at = Progress()
        self._stop = _StopRequest()

    def __enter__(self) -> Self:
        """Take the stage up and begin to listen for SIGTERM and Ctrl-C."""
        found = self._run.load_checkpoint(self._stage.name)
        if found:
            self.progress, memo = restore_snapshot(self._fabric, self._stage, found)
            self.memo, self._sums, self._steps = memo["memo"], memo["sums"], memo["steps"]
        self._check_processes_agree()
        self._note_saved()
        self._stop.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save what is not saved yet; turn what a stop request broke into `Stopped`.

        An error for people stays what it is: a save that failed must not pass for one.
        """
        try:
            if error is None and self.progress != self._saved_at:
                self.save()
        finally:
            self._stop.deafen()
        broken = isinstance(error, Exception) and not isinstance(error, UserError)
        if self._stop.exit_code and (error is None or broken):
            raise Stopped(self._stop.exit_code) from error

    def after_step(self, progress: Progress, terms: dict[str, float]) -> None:
        """Hook: add to the means; save or stop if it is time."""
        for name, value in terms.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._steps += 1
        self._save_or_stop(epoch_end=False)

    def after_epoch(self, progress: Progress) -> None:
        """Hook: save or stop if it is time. Write the epoch's metrics before."""
        self._save_or_stop(epoch_end=True)

    def means(self) -> dict[str, float]:
        """Return the mean of each term since the last call: over an epoch, restarts included."""
        means = {name: value / self._steps for name, value in self._sums.items()}
        self._sums, self._steps = {}, 0
        return means

    def save(self) -> None:
        """Save now. Every process has to call this."""
        began = time.monotonic()
        memo = {"memo": self.memo, "sums": self._sums, "steps": self._steps}
        snapshot = take_snapshot(self._fabric, self._stage, self.progress, memo)
        self._run.save_checkpoint(self._stage.name, snapshot)
        self._note_saved()
        self._cost = self._saved_time - began

    def _note_saved(self) -> None:
        self._saved_at = replace(self.progress)
        self._saved_time = self._looked = time.monotonic()

    def _save_or_stop(self, epoch_end: bool) -> None:
        now = time.monotonic()
        # The next chance comes after another step, which may be a long one.
        waited = (now - self._saved_time) + (now - self._looked)
        self._looked = now
        wish = self._stop.exit_code or int(self._policy.due(waited, self._cost, epoch_end))
        wish = self._largest(wish)
        if wish and self.progress != self._saved_at:
            self.save()
        if wish > 1:
            raise Stopped(wish)

    def _largest(self, number: int) -> int:
        """Return the largest of all processes' numbers, so that all do the same."""
        if self._fabric.world_size == 1:
            return number
        tensor = torch.tensor(number, device=self._fabric.device)
        reduced = self._fabric.all_reduce(tensor, reduce_op="max")
        assert isinstance(reduced, torch.Tensor)
        return int(reduced)

    def _check_processes_agree(self) -> None:
        step = self.progress.global_step
        if self._largest(step) != -self._largest(-step):
            raise UserError(
                f"the processes of this run see different checkpoints in {self._run.path}: "
                "the folder has to be one that all machines share"
            )


class _StopRequest:
    """Notes SIGTERM and Ctrl-C for the loop to see; a second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        self.exit_code = 0
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)

    def deafen(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, _: FrameType | None) -> None:
        # One Ctrl-C may arrive twice, from the terminal and from a parent that passes it on.
        if number == signal.SIGINT and self.exit_code and time.monotonic() - self._since > 0.5:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.exit_code:
            self.exit_code, self._since = 128 + number, time.monotonic()


def ignore_signals(_worker: int = 0) -> None:
    """Leave stopping to the main process: a `worker_init_fn` for data loaders.

    The first SIGTERM is the one that a whole group gets; a second one is meant for the worker, and
    without it a process that fails could not end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
