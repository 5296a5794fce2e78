"""The diagram stays readable: every name once, no two on one another, bars that do not meet."""

from itertools import pairwise

import numpy as np
import pytest

from scs_supcon.benchmark.cd_diagram import _levels, draw_cd_diagram
from scs_supcon.benchmark.statistics import nemenyi


def made(count, spread, columns=6):
    rng = np.random.default_rng(0)
    level = rng.random(count) * spread
    return {f"method_{n:02d}": (level[n] + rng.normal(size=columns)).tolist() for n in range(count)}


@pytest.mark.parametrize(("count", "spread"), [(17, 10.0), (17, 0.0), (2, 1.0), (5, 3.0)])
def test_every_method_is_named_on_a_line_of_its_own(count, spread, tmp_path):
    result = nemenyi(made(count, spread))
    paths = draw_cd_diagram(result, tmp_path / "cd", title="over 6 columns", adapted={"method_01"})
    assert [path.suffix for path in paths] == [".png", ".svg"]
    svg = paths[1].read_text()
    for name, rank in result.ranks.items():
        shown = f"{name} (adapted)" if name == "method_01" else name
        assert f">{shown}  {rank:.2f}<" in svg or f">{rank:.2f}  {shown}<" in svg
    assert f"CD = {result.cd:.2f}" in svg
    assert "over 6 columns" in svg


def test_bars_of_one_height_do_not_meet():
    result = nemenyi(made(17, 20.0, columns=20))
    levels = _levels(result)
    assert set(levels) == set(result.cliques)
    for height in set(levels.values()):
        bars = sorted(
            (result.ranks[clique[0]], result.ranks[clique[-1]])
            for clique, level in levels.items()
            if level == height
        )
        assert all(end < start for (_, end), (start, _) in pairwise(bars))


def test_names_are_not_read_as_formulas(tmp_path):
    scores = {"$x_1$": [3.0, 2.0, 1.0], "a<b>&": [1.0, 3.0, 2.0]}
    _, svg = draw_cd_diagram(nemenyi(scores), tmp_path / "cd", title="x")
    assert "$x_1$" in svg.read_text()
    assert "a&lt;b&gt;&amp;" in svg.read_text()
