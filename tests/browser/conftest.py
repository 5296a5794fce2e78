"""Chromium, and reports of short runs to open in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from browser_digits import train_digits, write_digits

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start Chromium once; skip the tests if there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install 'scs-supcon[browser]'"
    )
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip("no Chromium on this machine: install it, or set CHROMIUM=/path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=executable)
        yield started
        started.close()


@dataclass
class Visit:
    """An open page, its errors and its requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def visit(browser: Any) -> Any:
    """`with visit(report, width=390) as visited:` opens a report."""

    @contextmanager
    def open_page(report: Path, width: int = 1280, **options: Any) -> Iterator[Visit]:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        visited = Visit(context.new_page())
        visited.page.on("console", lambda message: visited.errors.append(message.text))
        visited.page.on("pageerror", lambda error: visited.errors.append(str(error)))
        visited.page.on("dialog", lambda dialog: visited.errors.append(dialog.message))
        visited.page.on("request", lambda request: visited.requests.append(request.url))
        visited.page.goto(report.resolve().as_uri())
        yield visited
        context.close()

    return open_page


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a short run on the handwritten digits."""
    from scs_supcon.training.train import train

    run = tmp_path_factory.mktemp("browser") / "digits"
    settings = ["probe.epochs=20", "probe.views=1"]
    train("digits", out=run, epochs=4, settings=settings, device="cpu", workers=0, quiet=True)
    return run / "report.html"


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Path:
    """The report that SCS_REPORT names, or that of the digits."""
    path = os.environ.get("SCS_REPORT")
    return Path(path) if path else request.getfixturevalue("digits")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose class and file names look like markup."""
    import csv

    from scs_supcon.data.builtin import shapes
    from scs_supcon.training.train import train

    folder = tmp_path_factory.mktemp("hostile")
    images = shapes(per_class=8)
    names = ('"><img src=x onerror=alert(1)>', "</script><script>alert(2)</script>", "{{7*7}}")
    with (folder / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image_path", "label"])
        for index, label in enumerate(images.labels.tolist()):
            if label < len(names):
                path = folder / f"<b onclick=alert(3)>{index}.png"
                images.open(index).resize((16, 16)).save(path)
                rows.writerow([path.name, names[label]])
    run = folder / "run<script>"
    train(
        folder / "table.csv",
        out=run,
        epochs=2,
        batch_size=8,
        settings=["probe.epochs=2", "probe.views=1"],
        device="cpu",
        workers=0,
        quiet=True,
    )
    return run / "report.html"


@pytest.fixture(scope="session")
def digits_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Digits as PNG files with a table, and the true labels of the images with a wrong one."""
    folder = tmp_path_factory.mktemp("digits")
    return folder, write_digits(folder)


@pytest.fixture(scope="session")
def trained_digits(
    digits_folder: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run on these digits; tests must not change it."""
    return train_digits(digits_folder[0] / "table.csv", tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def served(trained_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this run to serve."""
    pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'scs-supcon[serve]'")
    runs = tmp_path_factory.mktemp("served") / "runs"
    return Path(shutil.copytree(trained_digits, runs / "digits"))


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """`open_page(address)` opens a page; errors of its scripts fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    errors: list[str] = []

    def visit(address: str) -> Any:
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.goto(address)
        return page

    yield visit
    context.close()
    assert errors == []
