"""Where and with what experiments are computed, and what they return."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.benchmark.compare import ComparisonReport, run_comparison
from scs_supcon.benchmark.table import Table
from scs_supcon.device import Compute
from scs_supcon.progress import Display


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment.

    Attributes:
        name: of the experiment.
        path: the results folder.
        text: for the terminal.
        failed: runs that failed, and why.
    """

    name: str
    path: Path
    text: str
    failed: Mapping[str, str]


@dataclass(frozen=True)
class Resources:
    """Where and with what to compute.

    Attributes:
        out: folder of the results; each scale and experiment has a folder in it.
        runs: folder of the runs, which experiments, comparisons and machines may share.
        compute: device, data loading and cache.
        jobs: number of runs at a time.
        display: shows progress.
        train: False to use the finished runs only.
        accept_old: use runs that were made by other numeric code.
        dask: address of the scheduler of a Dask cluster that trains the runs.
    """

    out: Path
    runs: Path
    compute: Compute
    jobs: int
    display: Display
    train: bool = True
    accept_old: bool = False
    dask: str | None = None

    def compare(self, table: Table, out: Path) -> ComparisonReport:
        """Run a comparison with these resources."""
        return run_comparison(
            table,
            out=out,
            runs=self.runs,
            compute=self.compute,
            jobs=self.jobs,
            display=self.display,
            train=self.train,
            accept_old=self.accept_old,
            dask=self.dask,
        )
