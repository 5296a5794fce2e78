"""Build the report of a run: a self-contained page, and figures."""

from pathlib import Path

from scs_supcon.io.atomic import write_text
from scs_supcon.report.charts import write_figures
from scs_supcon.report.context import report_context
from scs_supcon.report.data import page_data
from scs_supcon.report.gallery import build_gallery, map_points
from scs_supcon.report.inputs import read_records
from scs_supcon.report.render import render_page


def build_report(run: str | Path) -> Path:
    """Write report.html and figures/ of a finished run from its records.

    Nothing is trained; neither the images nor the network is needed.

    Args:
        run: the run directory.

    Returns:
        The path of the page.

    Raises:
        UserError: the run is not finished, or a record is missing or damaged.
    """
    records = read_records(Path(run))
    gallery = build_gallery(records)
    maps = {name: map_points(vectors) for name, vectors in gallery.fields.items()}
    write_figures(records.path / "figures", records, gallery, maps)
    page = records.path / "report.html"
    html = render_page(
        "report.html.j2",
        scripts=("images.js", "explorer.js", "confusion.js", "tables.js"),
        data=page_data(records.evaluation, gallery, maps),
        **report_context(records, gallery),
    )
    write_text(page, html)
    return page
