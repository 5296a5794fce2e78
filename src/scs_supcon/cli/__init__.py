"""The command `scs`: one verb for each thing people do, one file for each group of them."""

from scs_supcon.cli import (
    compare,
    doctor,
    evaluate,
    export,
    methods,
    predict,
    report,
    runs,
    train,
    tune,
)
from scs_supcon.cli.app import app

__all__ = [
    "app",
    "compare",
    "doctor",
    "evaluate",
    "export",
    "methods",
    "predict",
    "report",
    "runs",
    "train",
    "tune",
]
