"""Run functions of this package on the workers of a Dask cluster.

What is sent is text: the name of a function of this package and its plain arguments, such as a
recipe in TOML and the name of a run directory. The workers need this package, the same numeric
code, and the shared folder. `dask_worker` is what runs there.
"""

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from scs_supcon.cluster.dask_worker import CallRequest, run_request
from scs_supcon.errors import UserError
from scs_supcon.plugins import allowed_code
from scs_supcon.runs.environment import numeric_code_digest
from scs_supcon.training.workers import WorkerReport, WorkerStatus, stoppable

CONNECT_SECONDS = 30
POLL_SECONDS = 0.1


class DaskPool:
    """Calls of functions on the workers of a Dask cluster; use it as a context manager.

    Dask gives the calls of a worker that was lost to another one. Ctrl-C and SIGTERM withdraw the
    calls that have not begun, and raise `Stopped`.

    Args:
        address: of the scheduler, such as "tcp://10.0.0.1:8786".
        jobs: number of calls that share the cores of a machine.

    Raises:
        UserError: no scheduler answers.
    """

    def __init__(self, address: str, jobs: int = 1) -> None:
        import distributed

        connect: Any = distributed.Client
        self.address = address
        self.jobs_per_machine = jobs
        self.workers: dict[str, Any] = {}
        try:
            self._client = connect(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f"--dask {address}: no Dask scheduler answers ({error}). Start `dask scheduler`, "
                f"and `dask worker {address}` on each machine, or correct the address"
            ) from error
        # A lost scheduler is one line of `wait`, not a traceback.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)

    def __enter__(self) -> "DaskPool":
        self._exits = stoppable(self._close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    def _close(self) -> None:
        with suppress(Exception):  # the scheduler may be gone
            self._client.close(5)

    @property
    def has_room(self) -> bool:
        """True: calls wait in the scheduler."""
        return True

    @property
    def jobs(self) -> int:
        """The number of calls that the cluster runs at a time."""
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def start(
        self, name: str, function: Callable[..., str], *args: Any, log: Path | None = None
    ) -> None:
        """Send a call; `args` must be plain values (text, numbers, None)."""
        request: CallRequest = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "arguments": list(args),
            "folder": str(Path.cwd()),
            "log": None if log is None else str(log),
            "jobs": self.jobs_per_machine,
            "own_code": list(allowed_code()),
            "numeric_code": numeric_code_digest(),
        }
        # A cell may be trained again after a failure was repaired, so no result is reused.
        self.workers[name] = self._client.submit(run_request, json.dumps(request), pure=False)

    def wait(self, timeout: float) -> dict[str, WorkerReport]:
        """Wait up to `timeout` seconds for a call to end; return the reports by name.

        Raises:
            UserError: the scheduler was lost.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not any(f.done() for f in self.workers.values()):
            time.sleep(POLL_SECONDS)
        ended = {name: future for name, future in self.workers.items() if future.done()}
        lost = any(future.status in ("cancelled", "lost") for future in ended.values())
        if lost or self._client.status != "running":
            raise UserError(
                f"the connection to the Dask scheduler {self.address} was lost: run the same "
                "command again to resume"
            )
        for name in ended:
            del self.workers[name]
        return {name: _report(future) for name, future in ended.items()}


def _report(future: Any) -> WorkerReport:
    if future.status == "error":
        error = future.exception()
        message = f"on the Dask cluster: {type(error).__name__}: {error}"
        return WorkerReport(WorkerStatus.FAILED, message, 0.0)
    status, message, seconds = json.loads(future.result())
    # A call that was told to stop by its machine is begun again, like one whose run is locked.
    stopped = status == WorkerStatus.STOPPED.value
    return WorkerReport(WorkerStatus.BUSY if stopped else WorkerStatus(status), message, seconds)
