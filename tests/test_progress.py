"""Progress on a pseudo-terminal, in a log, and with `quiet`."""

import os
import pty
import sys
import threading
from contextlib import suppress

import pytest

from scs_supcon import progress as progress_module
from scs_supcon.progress import Display, format_duration, format_estimate


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when the test moves it."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def lines(capsys):
    out, err = capsys.readouterr()
    assert out == "", "only results are printed to standard output"
    return err.splitlines()


def test_a_log_has_a_line_every_15_seconds_with_the_time_left(clock, capsys):
    with Display().progress("stage 1") as update:
        update(0, 100)
        for done in range(1, 41):
            clock(1.0)
            update(done, 100)
    assert lines(capsys) == [
        "stage 1: 15 of 100, about 85 s left",
        "stage 1: 30 of 100, about 70 s left",
    ]


def test_the_last_line_is_always_printed(clock, capsys):
    with Display().progress("features") as update:
        update(1, 2)
        update(2, 2)
    assert lines(capsys) == ["features: 2 of 2"]


def test_steps_before_a_resume_do_not_count_for_the_time_left(clock, capsys):
    with Display().progress("stage 1") as update:
        update(90, 110)
        clock(20.0)
        update(100, 110)
    assert lines(capsys) == ["stage 1: 100 of 110, about 20 s left"]


def test_no_time_left_is_shown_before_the_first_step(clock, capsys):
    with Display().progress("stage 1") as update:
        clock(20.0)
        update(0, 10)
    assert lines(capsys) == ["stage 1: 0 of 10"]


def test_the_time_left_never_counts_up(clock, capsys):
    with Display().progress("stage 1") as update:
        update(0, 100)
        for seconds, done in ((10, 10), (20, 20), (60, 30), (400, 40), (30, 90)):
            clock(seconds)  # other programs slow the steps down
            update(done, 100)
    assert lines(capsys) == [
        "stage 1: 20 of 100, about 2 min left",
        "stage 1: 30 of 100, more than 2 min left",
        "stage 1: 40 of 100, more than 2 min left",
        "stage 1: 90 of 100, about 58 s left",
    ]


def test_a_note_and_the_time_of_later_stages_are_shown(clock, capsys):
    display = Display()
    display.later = 60.0
    with display.progress("stage 1") as update:
        update(0, 40, "loss 1.2")
        clock(20.0)
        update(20, 40, "loss 0.5, validation accuracy 81.0%")
    assert lines(capsys) == [
        "stage 1: 20 of 40, loss 0.5, validation accuracy 81.0%, about 20 s left "
        "(about 80 s for all training)"
    ]


def test_quiet_prints_nothing(clock, capsys):
    quiet = Display(quiet=True)
    quiet.line("hello")
    with quiet.progress("stage 1") as update:
        update(1, 1)
    assert lines(capsys) == []


def test_a_terminal_gets_a_bar_with_the_time_left(monkeypatch):
    master, slave = pty.openpty()
    chunks = []

    def read():
        with suppress(OSError):  # raised when the other end is closed
            while chunk := os.read(master, 4096):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        with Display().progress("stage 1") as update:
            update(2, 4)
            update(3, 4, "loss 0.5")
    reader.join()
    os.close(master)
    shown = b"".join(chunks).decode()
    assert "stage 1" in shown
    assert "3/4" in shown
    assert "loss 0.5, less than a second left" in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "less than a second"),
        (0.99, "less than a second"),
        (1, "1 s"),
        (99.4, "99 s"),
        (100, "2 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (1e5, "27.8 h"),
    ],
)
def test_durations_are_formatted_with_a_suitable_unit(seconds, text):
    assert format_duration(seconds) == text


def test_an_estimate_of_almost_nothing_does_not_say_about():
    assert format_estimate(0.2) == "less than a second"
    assert format_estimate(12.3) == "about 12 s"
