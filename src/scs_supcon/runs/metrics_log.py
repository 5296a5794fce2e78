"""The metrics of a run: metrics.csv, and the same values for TensorBoard.

metrics.csv has one line per value and no timestamps, so that a resumed run ends with the same bytes
as an uninterrupted one.
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
    """Metrics of a run in chronological order."""

    def __init__(self, folder: Path):
        """Create a log in `folder`."""
        self._file = folder / "metrics.csv"
        self._tensorboard_folder = folder / "tensorboard"
        self._writers: dict[str, Any] = {}
        self._next_steps: dict[str, int] = {}

    def append(self, stage: str, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Add a line to metrics.csv and a point to TensorBoard for each value."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        if self._length() == 0:
            table.writerow(COLUMNS)
        for name, value in values.items():
            table.writerow((stage, epoch, step, name, repr(float(value))))
        try:
            with self._file.open("ab") as file:
                file.write(text.getvalue().encode())
            for name, value in values.items():
                self._writer(stage).add_scalar(name, float(value), step)
        except OSError as error:
            raise atomic.write_error(error, self._file) from error

    def flush(self) -> int:
        """Write everything to the disk and return the length of metrics.csv in bytes."""
        for writer in self._writers.values():
            writer.flush()
        if self._file.exists():
            atomic.sync(self._file)
        return self._length()

    def rewind(self, length: int) -> None:
        """Discard everything after the first `length` bytes of metrics.csv."""
        if self._length() < length:
            warnings.warn(
                f"{self._file} is shorter than at the last checkpoint: "
                "the missing lines cannot be restored",
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
        """Close the TensorBoard files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _length(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0

    def _writer(self, stage: str) -> Any:
        if stage not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            self._writers[stage] = SummaryWriter(
                str(self._tensorboard_folder / stage), purge_step=self._next_steps.get(stage, 0)
            )
        return self._writers[stage]
