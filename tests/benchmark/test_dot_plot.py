from scs_supcon.benchmark.dot_plot import draw_dot_plot


def test_every_method_is_there(tmp_path):
    scores = {"a": [70.0, 71.0], "$b$": [60.0], "c": []}
    png, svg = draw_dot_plot(scores, tmp_path / "dots", title="birds", best="a", adapted={"c"})
    text = svg.read_text()
    for words in ("birds", ">a<", ">$b$<", ">c (adapted)<"):
        assert words in text
    assert "test accuracy" in text
    assert png.stat().st_size > 1000


def test_the_part_is_named(tmp_path):
    _, svg = draw_dot_plot({"a": [70.0]}, tmp_path / "dots", title="birds", part="validation")
    assert "validation accuracy" in svg.read_text()
