"""The paper's printed accuracies, as `{method: one number per column}`."""

import csv
import math
from pathlib import Path

import pytest

Table = dict[str, list[float]]


def read(name: str) -> Table:
    with (Path(__file__).parent / name).open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {row[0]: [math.nan if cell == "-" else float(cell) for cell in row[1:]] for row in rows}


@pytest.fixture
def printed_main() -> Table:
    """Six columns, sixteen methods; SelfCon has two cells only."""
    return read("paper_main.csv")


@pytest.fixture
def main(printed_main: Table) -> Table:
    """The fifteen methods the paper ranks."""
    return {name: row for name, row in printed_main.items() if name != "SelfCon"}


@pytest.fixture
def resnet18() -> Table:
    return read("paper_resnet18.csv")


@pytest.fixture
def pooled(main: Table, resnet18: Table) -> Table:
    """Both tables side by side: fifteen methods, eleven columns."""
    return {name: row + resnet18[name] for name, row in main.items()}


@pytest.fixture
def folds() -> Table:
    """CIFAR-100, five folds."""
    return read("paper_folds.csv")
