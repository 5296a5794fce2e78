import os

import pytest


@pytest.fixture(autouse=True)
def quick_start(tmp_path_factory, monkeypatch):
    """Spare the processes that tests start an import of seconds.

    Fabric looks at the version of torchmetrics, where that is installed, by importing it.
    """
    folder = tmp_path_factory.mktemp("stub")
    (folder / "torchmetrics.py").write_text('__version__ = "0"\n')
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
