"""A finished run that a test may change."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "runs" / "shapes"))
