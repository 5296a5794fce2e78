from PIL import Image

from scs_supcon.benchmark.figures import save_figure, to_figure


def test_both_kinds_and_always_the_same_bytes(tmp_path):
    written = []
    for name in ("first", "second"):
        figure, axes = to_figure(2, 1)
        axes.plot([0, 1], [0, 1])
        written.append(save_figure(figure, tmp_path / name / "line"))
    assert [path.name for path in written[0]] == ["line.png", "line.svg"]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert Image.open(written[0][0]).size == (320, 160)
