import os

import pytest


@pytest.fixture(autouse=True)
def quick_start(tmp_path_factory, monkeypatch):
    """Replace torchmetrics, which takes seconds to import, by a stub in subprocesses.

    Fabric imports torchmetrics, if it is installed, to check its version.
    """
    folder = tmp_path_factory.mktemp("stub")
    (folder / "torchmetrics.py").write_text('__version__ = "0"\n')
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
