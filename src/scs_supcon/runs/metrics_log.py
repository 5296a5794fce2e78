"""metrics.csv, and the same numbers for TensorBoard.

One line for each number, and no times: a run that was stopped and taken up again ends with the same
bytes as one that never stopped.
"""

import csv
import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scs_supcon.io import atomic

COLUMNS = ("stage", "epoch", "step", "metric", "value")


class MetricsLog:
    """The numbers of a run, in the order in which they came."""

    def __init__(self, folder: Path):
        """Write to `folder`."""
        self._file = folder / "metrics.csv"
        self._board_folder = folder / "tensorboard"
        self._boards: dict[str, Any] = {}
        self._next_steps: dict[str, int] = {}

    def append(self, stage: str, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Add a line to metrics.csv and a point to TensorBoard for each value."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if self._length() == 0:
            rows.writerow(COLUMNS)
        for name, value in values.items():
            rows.writerow((stage, epoch, step, name, repr(float(value))))
        try:
            with self._file.open("ab") as file:
                file.write(text.getvalue().encode())
            for name, value in values.items():
                self._board(stage).add_scalar(name, float(value), step)
        except OSError as error:
            raise atomic.write_error(error, self._file) from error

    def flush(self) -> int:
        """Bring everything to the disk; return the length of metrics.csv."""
        for board in self._boards.values():
            board.flush()
        if self._file.exists():
            atomic.sync(self._file)
        return self._length()

    def rewind(self, length: int) -> None:
        """Forget all that came after the first `length` bytes of metrics.csv."""
        if self._length() < length:
            warnings.warn(
                f"{self._file} is shorter than at the last checkpoint: its lost lines stay lost",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self._length() > length:
            os.truncate(self._file, length)
        if self._file.exists():
            with self._file.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    self._next_steps[row["stage"]] = int(row["step"]) + 1

    def close(self) -> None:
        """Close TensorBoard's files."""
        for board in self._boards.values():
            board.close()
        self._boards.clear()

    def _length(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0

    def _board(self, stage: str) -> Any:
        if stage not in self._boards:
            from torch.utils.tensorboard import SummaryWriter

            self._boards[stage] = SummaryWriter(
                str(self._board_folder / stage), purge_step=self._next_steps.get(stage, 0)
            )
        return self._boards[stage]
