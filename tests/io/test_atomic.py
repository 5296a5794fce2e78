import errno
import os
import subprocess
import sys

import pytest

from scs_supcon.errors import UserError
from scs_supcon.io import atomic


def test_a_file_is_replaced_and_no_temporary_file_remains(tmp_path):
    path = tmp_path / "deep" / "file.json"
    atomic.write_json(path, {"a": 0.1})
    atomic.write_json(path, {"a": 0.2})
    assert path.read_text() == '{\n "a": 0.2\n}\n'
    assert [file.name for file in path.parent.iterdir()] == ["file.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    atomic.write_text(path, "old")
    with pytest.raises(KeyError), atomic.replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise KeyError
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_nested_writers_of_one_file_do_not_interfere(tmp_path):
    path = tmp_path / "file"
    with atomic.replacing(path) as first:
        first.write_text("first")
        with atomic.replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
        assert first.read_text() == "first", "a file that is being written is not removed"
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_two_processes_can_write_one_file_repeatedly(tmp_path):
    path = tmp_path / "file"
    code = (
        "import sys; from pathlib import Path\n"
        "from scs_supcon.io import atomic\n"
        "for _ in range(300): atomic.write_text(Path(sys.argv[1]), sys.argv[2] * 5000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, letter]) for letter in "ab"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    assert path.read_text() in {"a" * 5000, "b" * 5000}
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from scs_supcon.io import atomic
with atomic.replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_temporary_files_of_killed_writers_are_removed_by_the_next_writer(tmp_path):
    path = tmp_path / "file"
    for name in (".file.tmp2", ".files.1.tmp", "file.1.tmp"):
        (tmp_path / name).write_text("unrelated")
    others = set(tmp_path.iterdir())
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert len(set(tmp_path.iterdir()) - others) == 1
    atomic.write_text(path, "new")
    assert set(tmp_path.iterdir()) - others == {path}


FULL = """
import resource, sys
from pathlib import Path
from scs_supcon.errors import UserError
from scs_supcon.io import atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    atomic.write_bytes(Path(sys.argv[1]), bytes(5000))
except UserError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A file size limit makes the write fail half-way, as a full disk does."""
    path = tmp_path / "file"
    atomic.write_text(path, "old")
    result = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith(f"cannot write {path}: the disk is full")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_file_in_place_of_a_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file exists where a folder is needed"):
        atomic.write_text(tmp_path / "file" / "x", "")


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "no permission"), (errno.EIO, "error")],
)
def test_the_error_gives_the_cause(tmp_path, number, cause):
    message = str(atomic.write_error(OSError(number, os.strerror(number)), tmp_path))
    assert cause in message
    assert str(tmp_path) in message


def test_files_have_default_permissions(tmp_path):
    (tmp_path / "plain").touch()
    atomic.write_text(tmp_path / "file", "x")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_io_does_not_import_torch():
    code = "import sys, scs_supcon.io.atomic, scs_supcon.io.lock, scs_supcon.io.hashing\n"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
