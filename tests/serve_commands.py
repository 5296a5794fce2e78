"""Run `scs` commands in separate processes without importing torch for each of them.

Each input line is a request in JSON. Its process is forked from this one, which has imported
everything. The output is the process id, and later the exit code (negative: the signal).

A request is {"arguments", "folder", "eager", "signal_at", "full_at", "file_limit"}. Output is
written to `folder`/out and `folder`/err. An eager process saves a checkpoint after every step
instead of twice a minute. signal_at [signal, part of a path, count] sends the process a signal
before it creates, renames or removes such a file for the count-th time. The disk changes at no
other moment. full_at [part of a path, count] makes the disk full from that moment on. file_limit is
the largest size of a file.
"""

import errno
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scs_supcon.training import checkpointing

IMPORTED_ONCE = (
    *("scs_supcon.cli", "scs_supcon.training.train", "timm", "torchvision.transforms.v2"),
    *("torch.utils.tensorboard", "pyarrow.parquet", "sklearn.datasets"),
)


def serve() -> dict[str, Any] | None:
    """Fork a process per request and return the request in it; return None at the end."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return json.loads(line)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    return None


def run(request: dict[str, Any]) -> None:
    for number, name in enumerate(("in", "out", "err")):
        handle = os.open(Path(request["folder"]) / name, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        os.dup2(handle, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["eager"]:
        checkpointing.SavePolicy = partial(checkpointing.SavePolicy, every=0.0, at_most=0.0)
    if request["signal_at"]:
        sys.addaudithook(SignalAtFileAccess(*request["signal_at"]))
    if request.get("full_at"):
        sys.addaudithook(FullDisk(*request["full_at"]))
    if request.get("file_limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    sys.argv = ["scs", *request["arguments"]]
    code = 0
    try:
        runpy.run_module("scs_supcon", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # shutting down the interpreter would take two seconds


class SignalAtFileAccess:
    """An audit hook that sends this process a signal at a given file access."""

    def __init__(self, number: int, path_part: str, count: int) -> None:
        self.number, self.path_part, self.remaining = number, path_part, count

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.truncate"):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        if self.path_part in str(arguments[0]):
            self.remaining -= 1
            if self.remaining == 0:
                os.kill(os.getpid(), self.number)


class FullDisk:
    """An audit hook that makes creating files fail, from the count-th one on."""

    def __init__(self, path_part: str, count: int) -> None:
        self.path_part, self.remaining = path_part, count

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and (arguments[2] or 0) & os.O_CREAT:
            self.remaining -= self.path_part in str(arguments[0])
            if self.remaining <= 0 and self.path_part in str(arguments[0]):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    if (request := serve()) is not None:
        run(request)
