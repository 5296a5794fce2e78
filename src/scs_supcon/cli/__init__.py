"""The command `scs`: one module per command; `options` holds options that commands share."""

from scs_supcon.cli import (
    compare,
    datasets,
    diff,
    doctor,
    encoders,
    evaluate,
    export,
    methods,
    pack,
    predict,
    report,
    reproduce,
    runs,
    search,
    serve,
    train,
    tune,
)
from scs_supcon.cli.app import app

__all__ = [
    "app",
    "compare",
    "datasets",
    "diff",
    "doctor",
    "encoders",
    "evaluate",
    "export",
    "methods",
    "pack",
    "predict",
    "report",
    "reproduce",
    "runs",
    "search",
    "serve",
    "train",
    "tune",
]
