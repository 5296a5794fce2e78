"""A real Chromium, and reports of real runs to open in it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, started once; the tests are skipped, aloud, where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install 'scs-supcon[browser]'"
    )
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine: install one, or name it with CHROMIUM=/path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found)
        yield started
        started.close()


@dataclass
class Visit:
    """A page that was opened, what it complained of, and what it asked the network for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def visit(browser: Any) -> Any:
    """`with visit(report, width=390) as visited:` opens a report as a person would."""

    @contextmanager
    def open_page(report: Path, width: int = 1280, **how: Any) -> Iterator[Visit]:
        context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        visited = Visit(context.new_page())
        visited.page.on("console", lambda told: visited.complaints.append(told.text))
        visited.page.on("pageerror", lambda error: visited.complaints.append(str(error)))
        visited.page.on("dialog", lambda dialog: visited.complaints.append(dialog.message))
        visited.page.on("request", lambda asked: visited.requests.append(asked.url))
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
def given(request: pytest.FixtureRequest) -> Path:
    """The report that SCS_REPORT names, to look at any run by hand, or that of the digits."""
    named = os.environ.get("SCS_REPORT")
    return Path(named) if named else request.getfixturevalue("digits")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose classes and files have names that would be markup."""
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
