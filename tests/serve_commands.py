"""Run `scs` commands in separate processes without importing torch for each of them.

Each input line is a request in JSON. Its process is forked from this one, which has imported
everything. The output is the process id, and later the exit code (negative: the signal).

A request is {"arguments", "folder", "eager", "group", "signal_at", "kill_before", "full_at",
"file_limit", "executable"}. Output is written to `folder`/out and `folder`/err. An eager process
saves a checkpoint after every step instead of twice a minute. signal_at [signal, part of a path,
count] sends the process a signal before it creates, renames or removes such a file for the count-th
time; with a group, its workers get the signal, too. kill_before [folder, number] kills it before
the file-system operation of this number below a folder; see torture/file_operations.py. full_at
[part of a path, count] makes the disk full from that moment on. file_limit is the largest size of a
file. The size of `folder`/accesses is the number of these moments so far, in the process and its
workers. executable is the interpreter with which it starts other processes.
"""

import errno
import importlib
import json
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scs_supcon.training import checkpointing
from torture.file_operations import kill_before

IMPORTED_ONCE = (
    *("scs_supcon.cli", "scs_supcon.training.train", "timm", "torchvision.transforms.v2"),
    *("torch.utils.tensorboard", "pyarrow.parquet", "sklearn.datasets"),
)
# What other commands than `train` need, if it is installed.
COMMANDS = (
    *("scs_supcon.benchmark.compare", "scs_supcon.tuning.tune", "scs_supcon.reproduce.run"),
    *("scs_supcon.server.run_app", "scs_supcon.report.build", "scs_supcon.inference.onnx"),
    *("optuna", "onnx", "onnxruntime", "onnxscript", "torch.onnx", "uvicorn"),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
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
    if request["group"]:
        os.setpgid(0, 0)
    # Workers of `compare` and `tune` are forked from this process, which has imported everything.
    contexts = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: contexts(
        "fork" if method == "forkserver" else method
    )
    disturb(request)
    if request["executable"]:
        sys.executable = request["executable"]
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


def disturb(request: dict[str, Any]) -> None:
    """Arrange what happens to this process at its accesses to files."""
    accesses = Path(request["folder"]) / "accesses"
    if request["signal_at"]:
        sys.addaudithook(SignalAtFileAccess(accesses, *request["signal_at"], request["group"]))
    if request["kill_before"]:
        folder, number = request["kill_before"]
        kill_before(number, Path(folder), accesses, group=request["group"])
    if request["full_at"]:
        sys.addaudithook(FullDisk(accesses, *request["full_at"]))
    if request["file_limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)


class Accesses:
    """Counts the accesses to some files in this process and in those forked from it."""

    def __init__(self, file: Path, path_part: str, events: tuple[str, ...]) -> None:
        self.path_part, self.events = path_part, events
        self.handle = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY)

    def number(self, event: str, arguments: tuple[Any, ...], flags: int) -> int:
        """Return the number of this access; 0 if it is not counted."""
        if event not in self.events or self.path_part not in str(arguments[0]):
            return 0
        if event == "open" and not (arguments[2] or 0) & flags:
            return 0
        os.write(self.handle, b"x")
        return os.fstat(self.handle).st_size


class SignalAtFileAccess:
    """An audit hook that sends this process, or its group, a signal at a given file access."""

    def __init__(self, file: Path, number: int, path_part: str, count: int, group: bool) -> None:
        events = ("open", "os.rename", "os.remove", "os.truncate")
        self.accesses = Accesses(file, path_part, events)
        self.number, self.count, self.group = number, count, group

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.accesses.number(event, arguments, os.O_WRONLY | os.O_RDWR) == self.count:
            os.kill(0 if self.group else os.getpid(), self.number)


class FullDisk:
    """An audit hook that makes creating files fail, from the count-th one on."""

    def __init__(self, file: Path, path_part: str, count: int) -> None:
        self.accesses, self.count = Accesses(file, path_part, ("open",)), count

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.accesses.number(event, arguments, os.O_CREAT) >= self.count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    if "--commands" in sys.argv:
        for name in COMMANDS:
            with suppress(ImportError):
                importlib.import_module(name)
    if (request := serve()) is not None:
        run(request)
