"""Processes side by side share the cores; an error for people comes without a traceback."""

import subprocess
import sys

from scs_supcon.device import cores

SCRIPT = """
import os
import sys
from pathlib import Path

from scs_supcon.errors import UserError
from scs_supcon.tuning.workers import side_by_side


def leave_a_note(folder):
    (Path(folder) / str(os.getpid())).write_text(os.environ["OMP_NUM_THREADS"])


def fail(_):
    raise UserError("no good")


if __name__ == "__main__":
    print(side_by_side(leave_a_note, sys.argv[1], 2, lambda: None))
    print(side_by_side(fail, None, 1, lambda: None))
"""


def test_each_gets_the_job_and_its_share_of_the_cores(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    said = subprocess.run(
        [sys.executable, str(script), str(notes)], capture_output=True, text=True, check=False
    )
    assert said.stdout == "[0, 0]\n[1]\n", said.stderr
    assert said.stderr == "error: no good\n"
    assert [note.read_text() for note in notes.iterdir()] == [str(max(1, cores() // 2))] * 2
