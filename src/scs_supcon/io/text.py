"""Make text from untrusted sources safe to print."""

import re
from pathlib import Path

# Control characters (C0 and C1) except line feed and tab, line and paragraph separators, marks and
# overrides of the writing direction, invisible characters, and bytes that are not UTF-8.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str | Path) -> str:
    r"""Return text without characters that control a terminal or hide what is written.

    They are written as escapes: an escape character becomes `\x1b`, and a byte of a file name
    that is not UTF-8 becomes `\xff`.
    """
    return _UNSAFE.sub(_escape, str(text))


def printable_name(name: str | Path) -> str:
    r"""Return a name as `printable` does, on one line: a line feed becomes `\x0a`."""
    return printable(name).replace("\n", r"\x0a").replace("\t", r"\x09")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python represents a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return (
        f"\\x{code:02x}" if code < 128 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
