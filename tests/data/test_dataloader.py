import os
import signal
import sys

import pytest
from torch.utils.data import DataLoader, Dataset

from scs_supcon.data.dataloader import (
    announce,
    explain_killed_workers,
    start_worker,
    worker_context,
)
from scs_supcon.errors import UserError


@pytest.mark.parametrize(
    "error", [EOFError(), RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")]
)
def test_a_killed_worker_raises_an_error_with_advice(error: Exception) -> None:
    with (
        pytest.raises(UserError, match=r"was killed.*fewer --workers"),
        explain_killed_workers(),
    ):
        raise error


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(RuntimeError, match="sizes do not match"), explain_killed_workers():
        raise RuntimeError("sizes do not match")


@pytest.mark.parametrize(
    ("platform", "context"), [("linux", "fork"), ("darwin", "spawn"), ("win32", "spawn")]
)
def test_workers_are_forked_only_on_linux(
    monkeypatch: pytest.MonkeyPatch, platform: str, context: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert worker_context(2) == context
    assert worker_context(0) is None


class _Killer(Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        announce("birds/wren\x1b.png")
        os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_the_file_that_a_killed_worker_was_reading_is_named() -> None:
    loader = DataLoader(_Killer(), num_workers=1, worker_init_fn=start_worker)
    with (
        pytest.raises(UserError, match=r"while it was reading birds/wren.*\.png"),
        explain_killed_workers(),
    ):
        list(loader)
