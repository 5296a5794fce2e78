"""`corrections.csv`: corrected labels of images, appended as they are made.

Every row has a time, the image, its old and its new label; an empty label means that the image is
not used for training. Rows of one action have the same time. Undoing an action appends rows that
reverse it. A row is on the disk before the client gets an answer; a row that a crash cut off is
removed when the file is opened again.
"""

import csv
import io
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import sync, write_error

FILE = "corrections.csv"
NOT_USED = ""  # label of an image that is not used


class Correction(NamedTuple):
    """One row: the image `image` changed from `old_label` to `new_label`."""

    time: str
    image: str
    old_label: str
    new_label: str
    action: str = "label"  # or "undo"


class Corrections:
    """The corrected labels of a run.

    Args:
        file: the CSV file, which is created by the first correction.
        labels: labels of the images before any correction; images without a label are missing or
            have the label "".
    """

    def __init__(self, file: Path, labels: Mapping[str, str]) -> None:
        self._file, self._original = file, labels
        self._lock = threading.Lock()
        self._changed: dict[str, str] = {}
        self._actions: list[list[Correction]] = []
        self.rows: list[Correction] = []
        for row in _read(file):
            self._apply(row)

    def label(self, image: str) -> str:
        """Return the current label of an image."""
        return self._changed.get(image, self._original.get(image, NOT_USED))

    def changes(self) -> dict[str, str]:
        """Return the current labels of the images whose label differs from the original one."""
        return {
            image: label
            for image, label in self._changed.items()
            if label != self._original.get(image, NOT_USED)
        }

    @property
    def can_undo(self) -> bool:
        """Whether there is an action to undo."""
        return bool(self._actions)

    def relabel(self, images: Iterable[str], label: str) -> list[Correction]:
        """Give images a label in one action, and return the rows for those that had another."""
        with self._lock:
            time = self._time()
            rows = [
                Correction(time, image, self.label(image), label)
                for image in dict.fromkeys(images)
                if self.label(image) != label
            ]
            self._append(rows)
            return rows

    def undo(self) -> list[Correction]:
        """Reverse the last action that is not undone, and return the new rows."""
        with self._lock:
            if not self._actions:
                return []
            time = self._time()
            rows = [
                Correction(time, row.image, self.label(row.image), row.old_label, "undo")
                for row in reversed(self._actions[-1])
            ]
            self._append(rows)
            return rows

    def _time(self) -> str:
        """Return the time; never that of the last action, to which the rows would be added."""
        now = datetime.now(UTC)
        text = now.isoformat(timespec="microseconds")
        if self.rows and self.rows[-1].time == text:  # a coarse clock, or one that was set back
            text = (now + timedelta(microseconds=1)).isoformat(timespec="microseconds")
        return text

    def _append(self, rows: Sequence[Correction]) -> None:
        if not rows:
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        is_new = not self._file.exists()
        if is_new:
            writer.writerow(Correction._fields)
        writer.writerows(rows)
        try:
            _write_at_end(self._file, text.getvalue().encode())
            if is_new:
                sync(self._file.parent)
        except OSError as error:
            raise write_error(error, self._file) from error
        for row in rows:
            self._apply(row)

    def _apply(self, row: Correction) -> None:
        self.rows.append(row)
        self._changed[row.image] = row.new_label
        if row.action == "undo":
            undone = self._actions[-1] if self._actions else []
            undone[:] = [entry for entry in undone if entry.image != row.image]
            if self._actions and not undone:
                self._actions.pop()
        elif self._actions and self._actions[-1][0].time == row.time:
            self._actions[-1].append(row)
        else:
            self._actions.append([row])


def _write_at_end(file: Path, content: bytes) -> None:
    """Append to a file in one call and wait until it is on the disk; leave no part on failure."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0))
    try:
        before = os.fstat(handle).st_size
        try:
            if os.write(handle, content) != len(content):
                raise OSError(28, "the disk is full")
        except OSError:
            os.ftruncate(handle, before)
            raise
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(file: Path) -> list[Correction]:
    """Return the complete rows of a file, and cut off an incomplete one at its end."""
    if not file.exists():
        return []
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    end = content.rfind(b"\n") + 1
    rows = _parse(content[:end])
    while rows is None and end:  # cut inside a quoted cell
        end = content.rfind(b"\n", 0, end - 1) + 1
        rows = _parse(content[:end])
    if content and not rows and end == 0:
        raise UserError(f"{file} is not a table of corrections: move it away")
    if end < len(content):
        with file.open("r+b") as stream:
            stream.truncate(end)
    return rows or []


def _parse(content: bytes) -> list[Correction] | None:
    """Return the rows of a table, or None if it is not complete."""
    try:
        text = io.StringIO(content.decode(), newline="")
        rows = list(csv.reader(text, strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    if not rows:
        return []
    header, *cells = rows
    if tuple(header) != Correction._fields or any(len(row) != len(header) for row in cells):
        return None
    return [Correction(*row) for row in cells]
