"""Two processes have the gradients of one, in every arrangement of benchmarks/arrangements.py."""

import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "arrangements.py"


@pytest.mark.slow
def test_every_arrangement_has_the_gradients_of_one_process(
    on_ranks: Callable[..., list[dict[str, np.ndarray]]],
) -> None:
    script = runpy.run_path(str(SCRIPT))
    ranks = on_ranks(str(SCRIPT), 2)
    table: dict[str, dict[str, list[float]]] = script["ratios"](ranks)
    available = script["available"]
    installed = [n for n, (library, _) in script["ARRANGEMENTS"].items() if available(library)]
    assert list(table) == installed
    for name, parts in table.items():
        for part, ratios in parts.items():
            tolerance = 1e-4 if "float32" in name else 1e-9
            assert ratios == pytest.approx(np.ones(len(ratios)), abs=tolerance), (name, part)
    text = (ROOT / "docs" / "guide" / "distributed.md").read_text(encoding="utf-8")
    rows = script["markdown"](table).splitlines()
    assert [row for row in rows if row not in text] == []
