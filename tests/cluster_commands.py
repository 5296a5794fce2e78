"""Commands and conditions that the tests with real cluster software share."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SHORT = ("--epochs", "2", "--set", "probe.epochs=2", "--set", "probe.views=1")


def scs_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "scs_supcon", *arguments]


def run(*arguments: str, cwd: Path, timeout: float = 1800) -> str:
    """Run `scs` and return its output; a failure shows it."""
    result = subprocess.run(
        scs_command(*arguments),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.2)


def needs_root(*programs: str) -> None:
    """Skip the test unless it runs as root and the programs are installed."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("needs root")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
