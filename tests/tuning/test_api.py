"""`scs_supcon.tune` from Python."""

import pytest

import scs_supcon


@pytest.mark.slow
def test_a_search_from_python(shapes, tmp_path):
    pd = pytest.importorskip("pandas")
    result = scs_supcon.tune(
        shapes,
        out=tmp_path / "search",
        trials=2,
        over=["pretrain.lr=0.01..0.1:log"],
        method="supcon",
        epochs=1,
        batch_size=8,
        settings=["probe.epochs=2", "probe.views=1"],
        device="cpu",
        workers=0,
        quiet=True,
    )
    assert isinstance(result, scs_supcon.SearchResult)
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == ["trial", "val_loss", "val_accuracy", "pretrain.lr", "run"]
    assert frame.val_accuracy.max() == result.best.accuracy
    assert (tmp_path / "search" / "best.toml").is_file()
