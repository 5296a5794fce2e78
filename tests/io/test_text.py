"""Text from file names cannot control a terminal."""

import os

import pytest

from scs_supcon.io.text import printable, printable_name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b\té\n日本 👩\u200d🔬", "a b\té\n日本 👩\u200d🔬"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b2J\x85", r"\u009b2J\u0085"),
        ("photo\u202egpj.exe", r"photo\u202egpj.exe"),
        ("\u2066a\u2069\u200f\ufeff\u2028", r"\u2066a\u2069\u200f\ufeff\u2028"),
        ("a\rb\x00\x7f", r"a\x0db\x00\x7f"),
        (os.fsdecode(b"caf\xe9.png"), r"caf\xe9.png"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_control_characters_are_written_as_escapes(text, shown):
    assert printable(text) == shown
    assert printable(printable(text)) == shown


def test_a_name_stays_on_one_line():
    assert printable_name("a\nerror: b\tc") == r"a\x0aerror: b\x09c"
