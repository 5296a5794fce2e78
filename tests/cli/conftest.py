"""Fixtures of the command-line tests."""

import shutil

import pytest


@pytest.fixture
def runs(tmp_path, finished):
    """A folder with one finished run, x."""
    shutil.copytree(finished, tmp_path / "runs" / "x")
    return tmp_path / "runs"
