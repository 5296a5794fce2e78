"""The quick-start notebook runs from top to bottom, and is stored without outputs."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "quickstart.ipynb"


@pytest.mark.docs
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    text = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "accuracy" in text
    assert "rejected as unknown" in text
    assert "decision boundary" in text
    by_hand, ours = re.search(r"by hand (\S+), SCSSupCon (\S+)", text).groups()
    assert by_hand == ours


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
