"""Kill `scs serve` while labels are corrected: every acknowledged correction is stored, once."""

import json
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from command_processes import Processes

from .kills import Log
from .outcome import Outcome, resumed

CORRECTIONS = 60  # of a run, until its server may stop
START_SECONDS = 60  # in which a server has to start


def server_kills(
    seed: int, count: int, folder: Path, run: Path, processes: Processes, log: Log
) -> Iterator[Outcome]:
    """Kill servers `count` times, before a random write or at a random time, and restart them.

    Labels are corrected one by one, in an order that depends on what is stored only, so that
    `corrections.jsonl` must be that of a server that was not killed, except for the times.
    """
    chance = random.Random(seed)
    tried = 0
    expected, _ = _correct(processes, copy_run(run, folder), chance, kill=False)
    while tried < count:
        copy = copy_run(run, folder)
        killed, problem = 0, ""
        while not problem and killed < count - tried:
            content, problem = _correct(processes, copy, chance, kill=True)
            if content is not None:
                break
            killed += 1
        if not problem:
            content, problem = _correct(processes, copy, chance, kill=False)
            if not problem and content != expected:
                problem = "other corrections are stored"
        tried += killed
        log(f"serve: {killed} kills, {problem or 'the same corrections'}")
        yield resumed(killed, f"serve, {killed} kills: {problem}" if problem else "")


def _correct(
    processes: Processes, run: Path, chance: random.Random, *, kill: bool
) -> tuple[list[Any] | None, str]:
    """Start a server and correct labels until it is killed or all corrections are made.

    Returns:
        The corrections that are stored, without times, or None if the server was killed; and what
        went wrong, if something did.
    """
    port = free_port()
    count, at_write = chance.randint(1, 8), chance.random() < 0.5
    signal_at = (SIGKILL, "corrections.jsonl", count) if kill and at_write else None
    process = processes.start("serve", run, "--port", str(port), signal_at=signal_at)
    timer = threading.Timer(chance.uniform(0, 0.03), _kill, [process])
    acknowledged, problem = 0, ""
    try:
        before = acknowledged = wait_for(port)
        for number in range(before, CORRECTIONS):
            if kill and not at_write and number - before == count:
                timer.start()
            request(port, "POST", "/api/corrections", _correction(port, number))
            acknowledged = number + 1
        os.kill(process, SIGTERM)
    except (OSError, HTTPException, ValueError) as error:  # killed, or it does not answer
        problem = "" if kill else f"{type(error).__name__}: {error}"
    timer.cancel()
    result = processes.wait()
    stored = len(_actions(run))
    if "Traceback" in result.err:
        problem = result.err.strip()[-300:]
    elif not acknowledged <= stored <= acknowledged + 1:
        problem = f"{acknowledged} corrections were acknowledged, {stored} are stored"
    if problem or result.code == -SIGKILL:
        return None, problem
    return _actions(run), ""


def wait_for(port: int, has_ended: Callable[[], bool] = lambda: False) -> int:
    """Wait until the server answers; return the number of corrections that it has stored.

    Raises:
        ConnectionRefusedError: It has ended, or does not start in time.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return len(request(port, "GET", "/api/corrections")["rows"])
        except ConnectionRefusedError:
            if has_ended() or time.monotonic() > end:
                raise
            time.sleep(0.05)


def _correction(port: int, number: int) -> dict[str, Any]:
    """Give an image the class after its current one, so that every correction changes a label."""
    data = request(port, "GET", "/api/data")
    image = number % len(data["names"])
    classes = data["classes"]
    return {"images": [image], "label": classes[(data["labels"][image] + 1) % len(classes)]}


def request(port: int, method: str, path: str, document: Any = None) -> Any:
    """Return the answer of a server, from JSON."""
    connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    body = None if document is None else json.dumps(document)
    connection.request(method, path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    if response.status not in (200, 202):
        raise ValueError(f"{method} {path}: {response.status} {content[:200]!r}")
    return json.loads(content)


def _actions(run: Path) -> list[Any]:
    """Return the complete records of corrections.jsonl without their times and the header."""
    file = run / "corrections.jsonl"
    lines = file.read_bytes().split(b"\n")[1:-1] if file.exists() else []
    return [json.loads(line)["record"][1:] for line in lines]


def copy_run(run: Path, folder: Path) -> Path:
    """Copy a run to an empty folder `served`."""
    shutil.rmtree(folder / "served", ignore_errors=True)
    copy = folder / "served" / run.name
    return Path(shutil.copytree(run, copy))


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, SIGKILL)


def free_port() -> int:
    """Return a port that is not used now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
