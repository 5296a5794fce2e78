import errno
import os
import subprocess
import sys

import pytest

from scs_supcon.errors import UserError
from scs_supcon.run_folder import durable


def test_a_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "deep" / "file.json"
    durable.write_json(path, {"a": 0.1})
    durable.write_json(path, {"a": 0.2})
    assert path.read_text() == '{\n "a": 0.2\n}\n'
    assert [file.name for file in path.parent.iterdir()] == ["file.json"]


def test_a_failing_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    durable.write_text(path, "old")
    with pytest.raises(KeyError), durable.replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise KeyError
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


FULL = """
import resource, sys
from pathlib import Path
from scs_supcon.errors import UserError
from scs_supcon.run_folder import durable
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    durable.write_bytes(Path(sys.argv[1]), bytes(5000))
except UserError as error:
    print(error)
"""


def test_a_full_disk(tmp_path):
    """The system refuses the write in the middle, as a full disk does."""
    path = tmp_path / "file"
    durable.write_text(path, "old")
    result = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith(f"cannot write {path}: the disk is full")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_file_where_a_folder_is_needed(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file stands where a folder is needed"):
        durable.write_text(tmp_path / "file" / "x", "")


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "no permission"), (errno.EIO, "error")],
)
def test_the_cause_is_named(tmp_path, number, words):
    message = str(durable.explained(OSError(number, os.strerror(number)), tmp_path))
    assert words in message
    assert str(tmp_path) in message
