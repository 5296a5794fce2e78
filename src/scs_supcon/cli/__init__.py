"""The command `scs`: one verb for each thing people do, one file for each group of them."""

from scs_supcon.cli import (
    ask,
    compare,
    doctor,
    evaluate,
    export,
    methods,
    report,
    runs,
    train,
    tune,
)
from scs_supcon.cli.app import app

__all__ = [
    "app",
    "ask",
    "compare",
    "doctor",
    "evaluate",
    "export",
    "methods",
    "report",
    "runs",
    "train",
    "tune",
]
