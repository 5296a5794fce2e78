"""Journals: files of records that are appended one by one and survive crashes.

A journal is a text file with one JSON object per line: `{"crc32": "…", "record": …}`. The first
line is a header, which is written together with the first record. A record is on the disk before
`append` returns. What a crash cut off at the end is ignored, and removed before the next record is
written: opening changes nothing, because another process may be appending. A line that is damaged
anywhere else is an error.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scs_supcon.io.atomic import sync, write_bytes, write_error
from scs_supcon.io.records import MissingRecord, RecordError, parse_json, read_bytes

FORMAT = 1
_LINE = re.compile(rb'\{"crc32": "([0-9a-f]{8})", "record": (.*)\}', re.DOTALL)


class Journal:
    """A file of records; the caller makes sure that one process at a time appends to it.

    Args:
        file: The file, which the first record creates.
        kind: What the records are, such as "corrections"; a journal of another kind is rejected.

    Attributes:
        file: The file.
        records: The records, ready for JSON; the caller validates them.

    Raises:
        RecordError: The file is damaged; a copy is kept beside it and named in the message.
    """

    def __init__(self, file: Path, kind: str) -> None:
        self.file, self._kind = file, kind
        try:
            content = read_bytes(file)
        except MissingRecord:
            content = b""
        self._size = _complete_size(content)
        self._cut_off = len(content) - self._size
        self.records: list[Any] = list(self._parse(content[: self._size]))

    def append(self, record: Any) -> None:
        """Append a record and wait until it is on the disk.

        Raises:
            CannotWrite: The disk is full, or the file cannot be written; nothing was appended.
            RecordError: Another program has changed the file.
        """
        content = _line(record) if self._size else self._header() + _line(record)
        try:
            self._write(content)
        except OSError as error:
            raise write_error(error, self.file) from error
        self._size += len(content)
        self.records.append(record)

    @classmethod
    def create(cls, file: Path, kind: str, records: list[Any]) -> "Journal":
        """Write a new journal with some records, all of them or none."""
        journal = cls(file, kind)
        if records:
            content = journal._header() + b"".join(map(_line, records))
            write_bytes(file, content)
            journal._size, journal.records = len(content), records
        return journal

    def _header(self) -> bytes:
        return _line({"journal": self._kind, "format": FORMAT})

    def _write(self, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        handle = os.open(self.file, flags, 0o666)
        try:
            if os.fstat(handle).st_size != self._size + self._cut_off:
                raise RecordError(
                    f"{self.file} was changed by another program: start this one again"
                )
            try:
                if self._cut_off:
                    os.ftruncate(handle, self._size)
                    self._cut_off = 0
                if os.write(handle, content) != len(content):
                    raise OSError(28, "the disk is full")
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, self._size)
                raise
        finally:
            os.close(handle)
        if not self._size:
            sync(self.file.parent)

    def _parse(self, content: bytes) -> Iterator[Any]:
        lines = content.splitlines()
        for number, line in enumerate(lines, 1):
            match = _LINE.fullmatch(line)
            if match is None or zlib.crc32(match[2]) != int(match[1], 16):
                others = len(lines) - 2
                raise refusal(
                    self.file,
                    f"line {number} of {len(lines)} does not match its checksum",
                    f"delete that line to keep the {others:,} other records",
                )
            record = parse_json(match[2], self.file)
            if number > 1:
                yield record
            elif record != {"journal": self._kind, "format": FORMAT}:
                raise RecordError(
                    f"{self.file} is not a journal of {self._kind} that this version reads: "
                    "move it away"
                )


def refusal(file: Path, problem: str, remedy: str) -> RecordError:
    """Keep a copy of a damaged file, and return the error that says how to recover.

    Args:
        file: The damaged file, which stays as it is.
        problem: What is damaged.
        remedy: What to do to recover.
    """
    copy = file.with_name(f"{file.name}.damaged")
    if not copy.exists():
        shutil.copyfile(file, copy)
    return RecordError(f"{file} is damaged: {problem}. A copy is kept as {copy.name}; {remedy}.")


def _line(record: Any) -> bytes:
    """Return a line; JSON escapes line breaks and everything that is not ASCII."""
    text = json.dumps(record).encode()
    return b'{"crc32": "%08x", "record": %s}\n' % (zlib.crc32(text), text)


def _complete_size(content: bytes) -> int:
    """Return the size without a line at the end that a crash or a power failure cut off.

    Such a line has no line break, or null bytes where a part of it did not reach the disk.
    """
    end = content.rfind(b"\n") + 1
    last = content.rfind(b"\n", 0, max(0, end - 1)) + 1
    return last if b"\0" in content[last:end] else end
