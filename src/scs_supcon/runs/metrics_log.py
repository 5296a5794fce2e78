"""The metrics of a run: metrics.csv, and the same values for TensorBoard.

metrics.csv has one line per value and no timestamps, so that a resumed run ends with the same bytes
as an uninterrupted one.
"""

import csv
import hashlib
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from scs_supcon.io import atomic
from scs_supcon.io.records import RecordError, csv_rows, read_bytes

STEP_METRICS = ("step_t", "step_b")  # after single steps; all others are per epoch
MetricRows: TypeAlias = Sequence[tuple[int, Mapping[str, float]]]
"""Steps and their values by name."""
COLUMNS = ("stage", "epoch", "step", "metric", "value")


class MetricsLog:
    """Metrics of a run in chronological order."""

    def __init__(self, folder: Path):
        """Create a log in `folder`."""
        self._file = folder / "metrics.csv"
        self._tensorboard_folder = folder / "tensorboard"
        self._writers: dict[str, Any] = {}
        self._next_steps: dict[str, int] = {}

    def append(
        self,
        stage: str,
        epoch: int,
        step: int,
        values: Mapping[str, float],
        earlier: MetricRows = (),
    ) -> None:
        """Add a line to metrics.csv and a point to TensorBoard for each value.

        Args:
            stage: the stage.
            epoch: epochs done.
            step: steps done.
            values: by name.
            earlier: values of earlier steps of the epoch, which are written before them.
        """
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        if self._length() == 0:
            table.writerow(COLUMNS)
        rows = [*earlier, (step, values)]
        points = [(at, name, float(x)) for at, row in rows for name, x in row.items()]
        for at, name, value in points:
            table.writerow((stage, epoch, at, name, repr(value)))
        try:
            with self._file.open("ab") as file:
                file.write(text.getvalue().encode())
            for at, name, value in points:
                self._writer(stage).add_scalar(name, value, at)
        except OSError as error:
            raise atomic.write_error(error, self._file) from error

    def flush(self) -> tuple[int, str]:
        """Write everything to the disk; return length and SHA-256 digest of metrics.csv."""
        for writer in self._writers.values():
            writer.flush()
        if self._file.exists():
            atomic.sync(self._file)
        content = self._content()
        return len(content), hashlib.sha256(content).hexdigest()

    def rewind(self, length: int, digest: str | None = None) -> None:
        """Discard everything after the first `length` bytes of metrics.csv.

        A file that has changed since the checkpoint is kept, with a warning.
        """
        if self._length() > length:
            os.truncate(self._file, length)
        content = self._content()
        short = len(content) < length
        if short or (digest and hashlib.sha256(content).hexdigest() != digest):
            warnings.warn(
                f"{self._file} {'is shorter than at' if short else 'has changed since'} "
                f"the last checkpoint: {'the missing' if short else 'changed'} lines cannot be "
                "restored, so the file will differ from that of an uninterrupted run",
                RuntimeWarning,
                stacklevel=2,
            )
        with suppress(RecordError, ValueError):  # damaged: the warning above says so
            if content:
                for row in csv_rows(self._file, ("stage", "step")):
                    self._next_steps[row["stage"]] = int(row["step"]) + 1

    def close(self) -> None:
        """Close the TensorBoard files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _content(self) -> bytes:
        return read_bytes(self._file) if self._file.exists() else b""

    def _length(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0

    def _writer(self, stage: str) -> Any:
        if stage not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            self._writers[stage] = SummaryWriter(
                str(self._tensorboard_folder / stage), purge_step=self._next_steps.get(stage, 0)
            )
        return self._writers[stage]
