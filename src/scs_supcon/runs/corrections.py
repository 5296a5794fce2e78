"""Corrected labels of the images of a run: a journal, one record per action of the user.

A record has the time, the action and its images, each with its old and its new label; an empty
label means that the image is not used for training. Undoing an action appends a record that
reverses it. `corrections.csv` of version 0.2 is converted when it is found.
"""

import csv
import io
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from scs_supcon.io.atomic import sync
from scs_supcon.io.journal import Journal, refusal
from scs_supcon.io.records import read_bytes
from scs_supcon.io.typed import validate

FILE, OLD_FILE = "corrections.jsonl", "corrections.csv"
REMEDY = "correct or delete the row in a text editor, then start again"
NOT_USED = ""  # label of an image that is not used
_LINE_BREAK = re.compile(r"\r(?!\n)")
_MARK = "\ue000"  # a character that no file name has, for a line break inside a name


class Change(NamedTuple):
    """An image and its labels before and after an action."""

    image: str
    old_label: str
    new_label: str


class Action(NamedTuple):
    """One record of the journal."""

    time: str
    action: Literal["label", "undo"]
    images: list[Change]


class Correction(NamedTuple):
    """One change of an action, for the list of corrections."""

    time: str
    image: str
    old_label: str
    new_label: str
    action: str = "label"  # or "undo"


class Corrections:
    """The corrected labels of a run.

    Args:
        file: the journal, which is created by the first correction.
        labels: labels of the images before any correction; images without a label are missing or
            have the label "".
    """

    def __init__(self, file: Path, labels: Mapping[str, str]) -> None:
        self._original = labels
        self._lock = threading.Lock()
        self._changed: dict[str, str] = {}
        self._actions: list[list[Change]] = []
        self.rows: list[Correction] = []
        self._journal = _open(file)
        for record in self._journal.records:
            self._apply(validate(Action, record, file))

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
            changes = [
                Change(image, self.label(image), label)
                for image in dict.fromkeys(images)
                if self.label(image) != label
            ]
            return self._append("label", changes)

    def undo(self) -> list[Correction]:
        """Reverse the last action that is not undone, and return the new rows."""
        with self._lock:
            if not self._actions:
                return []
            changes = [
                Change(change.image, self.label(change.image), change.old_label)
                for change in reversed(self._actions[-1])
            ]
            return self._append("undo", changes)

    def _append(self, action: Literal["label", "undo"], changes: list[Change]) -> list[Correction]:
        if not changes:
            return []
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        record = Action(now, action, changes)
        self._journal.append(record)
        self._apply(record)
        return self.rows[-len(changes) :]

    def _apply(self, record: Action) -> None:
        for change in record.images:
            self.rows.append(Correction(record.time, *change, record.action))
            self._changed[change.image] = change.new_label
        if record.action == "label":
            self._actions.append(record.images)
        elif self._actions:
            self._actions.pop()


def _open(file: Path) -> Journal:
    """Open the journal; convert the table of version 0.2 if there is no journal yet."""
    table = file.with_name(OLD_FILE)
    if file.exists() or not table.exists():
        return Journal(file, "corrections")
    journal = Journal.create(file, "corrections", _read_table(table))
    table.rename(table.with_name(f"{OLD_FILE}.converted"))
    sync(table.parent)
    return journal


def _read_table(file: Path) -> list[Action]:
    """Return the actions in a table of version 0.2: rows of one action have the same time.

    The last row may be cut off by a crash, and a full disk at the first row left no header. A line
    break in a file name is not quoted.
    """
    content = read_bytes(file)
    try:
        text = content[: content.rfind(b"\n") + 1].decode()
        cells = csv.reader(io.StringIO(_LINE_BREAK.sub(_MARK, text), newline=""), strict=True)
        rows = [[cell.replace(_MARK, "\r") for cell in row] for row in cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise refusal(file, str(error), REMEDY) from error
    actions: list[Action] = []
    for number, row in enumerate(rows, 1):
        if number == 1 and tuple(row) == Correction._fields:
            continue
        if len(row) != len(Correction._fields) or row[-1] not in ("label", "undo"):
            raise refusal(file, f"row {number} is not a correction", REMEDY)
        time, image, old_label, new_label, action = row
        if not actions or (actions[-1].time, actions[-1].action) != (time, action):
            actions.append(Action(time, "label" if action == "label" else "undo", []))
        actions[-1].images.append(Change(image, old_label, new_label))
    return actions
