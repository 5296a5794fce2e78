"""Make the report of a run: a page that needs nothing beside itself, and figures."""

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from scs_supcon.io.atomic import write_text
from scs_supcon.report.context import view
from scs_supcon.report.data import Places, page_data
from scs_supcon.report.figures import write_figures
from scs_supcon.report.gallery import Gallery, hang
from scs_supcon.report.inputs import Inputs, read_inputs
from scs_supcon.report.maps import lay_out

SCRIPTS = ("images.js", "explorer.js", "confusion.js", "tables.js")


def build_report(run: str | Path) -> Path:
    """Write report.html and figures/ of a finished run from the files it left.

    Nothing is trained, and neither the images' folder nor the network is needed.

    Args:
        run: the run's folder.

    Returns:
        The path of the page.

    Raises:
        UserError: the run is not finished, or lacks what a report is made of.
    """
    inputs = read_inputs(Path(run))
    gallery = hang(inputs)
    fields = ("common", "style") if gallery.style.shape[1] else ("common",)
    places = {field: lay_out(getattr(gallery, field)) for field in fields}
    write_figures(inputs.path / "figures", inputs, gallery, places)
    page = inputs.path / "report.html"
    write_text(page, render(inputs, gallery, places))
    return page


def render(inputs: Inputs, gallery: Gallery, places: Places) -> str:
    """The page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("scs_supcon.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["breakable"] = breakable
    style = _packaged("report.css")
    script = '"use strict";\n' + "\n".join(_packaged(name) for name in SCRIPTS)
    parts: dict[str, Any] = {
        "style": Markup(style),
        "script": Markup(script),
        "policy": policy(style, script),
        "data": page_data(inputs.evaluation, gallery, places),
    }
    return pages.get_template("report.html.j2").render(view(inputs, gallery), **parts)


def breakable(name: str) -> Markup:
    """A name from a file that may go on in the next line after a stroke or a slash."""
    parts = re.split(r"(?<=[_/-])", name)
    return Markup("<wbr>").join(parts)


def policy(style: str, script: str) -> str:
    """What the browser lets the page do: run this script, use this style, show its images."""
    return (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packaged(name: str) -> str:
    return (resources.files("scs_supcon.report") / "page" / name).read_text(encoding="utf-8")
