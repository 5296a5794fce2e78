"""What runs on a Dask worker: a call of a function of this package in a process of its own.

A run can be saved by a signal in the main thread only, hence the process; it stops, and saves its
run, when its Dask worker ends. The Dask worker itself imports nothing heavy.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TypedDict

PACKAGE = "scs_supcon"
FAILED = "failed"  # the value of `WorkerStatus.FAILED`


class CallRequest(TypedDict):
    """A call: plain values, sent as JSON.

    Attributes:
        function: such as "scs_supcon.tuning.study:work_on".
        arguments: of the function.
        folder: the current folder, on a file system that all machines share.
        log: file for its output.
        jobs: number of calls that share the cores of a machine.
        own_code: what the user has allowed to be imported.
        numeric_code: digest of the code that sends the request.
    """

    function: str
    arguments: list[str | int | bool | None]
    folder: str
    log: str | None
    jobs: int
    own_code: list[str]
    numeric_code: str


def run_request(request: str) -> str:
    """Run a call on a Dask worker, in a process of its own; return its status and message."""
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        cwd=json.loads(request)["folder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{request}\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        # Only now is standard input closed, which tells the process that this worker has ended.
        code = process.wait() if answer else process.wait(60)
    if not answer:
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        message = f"the process ended with {cause}, perhaps out of memory: use fewer --jobs"
        return json.dumps([FAILED, message, time.monotonic() - start])
    return json.dumps([*json.loads(answer), time.monotonic() - start])


def _main() -> None:
    """Read a request from standard input, run it, and print status and message."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not part of the answer
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_worker, daemon=True).start()
    answers.write(json.dumps(answer(request)) + "\n")
    answers.close()


def answer(request: CallRequest) -> tuple[str, str]:
    """Run a request; return the value of its `WorkerStatus`, and its result or error."""
    module, _, name = request["function"].partition(":")
    if module.partition(".")[0] != PACKAGE:
        return FAILED, f"{module}:{name} is not a function of {PACKAGE}"

    import torch

    from scs_supcon.plugins import allow_code
    from scs_supcon.runs.environment import numeric_code_digest
    from scs_supcon.training.workers import call_and_report, threads_per_worker

    if request["numeric_code"] != numeric_code_digest():
        return FAILED, (
            "a Dask worker has another version of scs-supcon: install the same one on all machines"
        )
    allow_code(*request["own_code"])
    torch.set_num_threads(threads_per_worker(request["jobs"]))
    function = getattr(import_module(module), name)
    log = Path(request["log"]) if request["log"] else None
    status, message = call_and_report(function, tuple(request["arguments"]), log)
    return status.value, message


def _stop_with_worker() -> None:
    """Wait until the Dask worker has ended, then stop; a run is saved first."""
    while os.read(0, 4096):  # sys.stdin would be locked, and forked loader workers close theirs
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _main()
