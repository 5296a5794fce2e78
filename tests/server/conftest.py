"""A real server on a real socket, for a copy of a finished run."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from server_client import Client, serve_run
from server_processes import free_port

pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'scs-supcon[serve]'")


@pytest.fixture
def unused_port() -> int:
    return free_port()


@pytest.fixture
def client_of(run_copy: Path) -> Callable[[int], Client]:
    """`client_of(port)` sends requests to a server that another process runs."""
    return lambda port: Client(port, run_copy)


Serve = Callable[..., Any]


@pytest.fixture(scope="session")
def serve() -> Serve:
    """`with serve(run, **options) as client:` runs a server in a thread."""
    from scs_supcon.server.protocol import LimitedProtocol

    return partial(serve_run, http=LimitedProtocol)


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that tests may change."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "shapes"))


@pytest.fixture(scope="module")
def client(
    finished: Path, serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """A server for a copy of the finished run."""
    run = shutil.copytree(finished, tmp_path_factory.mktemp("served") / "shapes")
    with serve(run) as client:
        yield client


@pytest.fixture(scope="session")
def image_files(shapes: Path) -> list[Path]:
    return sorted(shapes.rglob("*.png"))
