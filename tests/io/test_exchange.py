"""A folder that is replaced is whole at any moment, for readers and after a kill."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scs_supcon.errors import UserError
from scs_supcon.io import exchange
from scs_supcon.io.exchange import keep_copy, read_folder, recover, replacing_folder

NAMES = ("a", "b", "c")


@pytest.fixture(params=["exchange", "two steps"])
def folder(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "two steps":  # as on a system that cannot exchange names
        monkeypatch.setattr(exchange, "exchange_names", lambda a, b: False)
    fill(tmp_path / "model", "old")
    return tmp_path / "model"


def fill(folder: Path, version: str) -> None:
    with replacing_folder(folder) as new:
        for name in NAMES:
            (new / name).write_text(version)


def version_of(folder: Path) -> str:
    versions = {(folder / name).read_text() for name in NAMES}
    if len(versions) > 1:
        raise UserError("the files do not fit together")
    return versions.pop()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_folder_is_replaced(folder: Path) -> None:
    (folder / "extra").write_text("of the old folder")
    fill(folder, "new")
    assert version_of(folder) == "new"
    assert sorted(path.name for path in folder.iterdir()) == list(NAMES)
    assert names_in(folder.parent) == ["model"]


def test_a_failure_leaves_the_old_folder(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), replacing_folder(folder) as new:
        (new / "a").write_text("new")
        _ = 1 / 0
    assert version_of(folder) == "old"
    assert names_in(folder.parent) == ["model"]


def test_the_target_of_a_link_is_replaced(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    fill(link, "new")
    assert link.is_symlink()
    assert version_of(folder) == "new"


def test_a_copy_survives_the_replacement(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("x")
    keep_copy(folder, folder.with_name("kept"))
    fill(folder, "new")
    assert version_of(folder.with_name("kept")) == "old"
    assert (folder.with_name("kept") / "sub" / "file").read_text() == "x"


def test_readers_get_a_whole_folder_at_any_moment(folder: Path) -> None:
    stop, seen, problems = threading.Event(), set(), []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.add(read_folder(folder, version_of))
            except Exception as error:
                problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(60):
        fill(folder, str(number))
    stop.set()
    for reader in readers:
        reader.join()
    assert not problems
    assert len(seen) > 2


def operations(work: Callable[[], None], kill_before: int) -> int:
    """Do the work in a forked process; kill it before an operation. Return how many there were."""
    receiver, sender = os.pipe()
    process = os.fork()
    if process == 0:
        import sys

        count = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            names = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")
            if event in names or (event == "open" and "w" in str(arguments[1])):
                count += 1
                if count == kill_before:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work()
        os.write(sender, str(count).encode())
        os._exit(0)
    os.close(sender)
    os.waitpid(process, 0)
    with os.fdopen(receiver, "rb") as pipe:
        return int(pipe.read() or 0)


def test_a_kill_before_any_operation_leaves_a_whole_folder(folder: Path) -> None:
    def work() -> None:
        keep_copy(folder, folder.with_name("previous"))
        fill(folder, "new")

    killed = 0
    while not operations(work, kill_before=killed + 1):
        killed += 1
        recover(folder)
        assert read_folder(folder, version_of) in ("old", "new")
        work()
        assert version_of(folder) == "new"
        assert names_in(folder.parent) == ["model", "previous"]
        fill(folder, "old")
    assert killed > 10


def test_a_mounted_folder_is_explained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(self: Path, target: Path) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(exchange, "exchange_names", lambda a, b: False)
    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(UserError, match="choose a folder inside it"):
        fill(folder, "new")
