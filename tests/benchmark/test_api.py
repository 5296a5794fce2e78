"""`scs_supcon.compare` from Python: the same as the command, with typed results."""

import csv

import pytest

import scs_supcon
from scs_supcon.benchmark.table import Row
from scs_supcon.errors import UserError

QUICK = [
    *("pretrain.epochs=1", "pretrain.batch_size=8", "probe.epochs=2", "probe.views=1"),
    *("data.test_share=0.34", "data.val_share=0.2"),
]


@pytest.fixture(scope="module")
def report(shapes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    rows = ["scs_supcon", Row(method="supcon", name="SupCon, linear", readout="linear")]
    return scs_supcon.compare(
        shapes, rows, out=folder / "out", runs=folder / "runs", settings=QUICK, device="cpu",
        seeds=2, quiet=True,
    )  # fmt: skip


def test_the_result_is_typed_and_converted_on_request(report):
    pd = pytest.importorskip("pandas")
    (column,) = report.comparison.columns
    assert set(column.means) >= {"scs_supcon", "SupCon, linear", "baseline"}
    frame = report.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == 6
    mean = 100 * frame[frame.method == "SupCon, linear"].accuracy.mean()
    assert column.means["SupCon, linear"].mean == pytest.approx(mean)
    with (report.path / "results.csv").open() as file:
        assert csv.DictReader(file).fieldnames == list(frame.columns)


def test_the_readout_of_every_row_is_named(report):
    readouts = {r.cell.row: r.summary.readout for r in report.results}
    assert readouts["SupCon, linear"] == "linear, features"
    assert readouts["baseline"] == "classifier of stage 1" or readouts["baseline"].startswith("lin")
    page = (report.path / "comparison.html").read_text()
    for readout in readouts.values():
        assert f'<td data-value="{readout}">{readout}</td>' in page
        assert readout in report.text
    assert ">kNN on tiny, trained by baseline<" in page


def test_the_page_shows_times_pairs_and_curves(report):
    page = (report.path / "comparison.html").read_text()
    for text in (
        "seconds per run, features cached",
        "seconds of extraction",
        "Differences and p-values of all pairs",
        "after each step of stage 1",
    ):
        assert text in page
    assert (report.path / "figures" / "pair_parameters.svg").is_file()
    with (report.path / "pairs.csv").open() as file:
        pairs = list(csv.DictReader(file))
    assert len(pairs) == 6, "of four rows, with kNN"
    assert {pair["p_holm"] != "" for pair in pairs} == {True}


def test_the_same_runs_by_another_metric_and_readout(report, shapes, tmp_path):
    runs = report.results[0].run.parent
    shared = {"runs": runs, "device": "cpu", "quiet": True, "train": False}
    table = report.path / "comparison.toml"
    again = scs_supcon.compare(table, out=tmp_path / "out", metric="map_at_r", **shared)
    values = [
        100 * r.evaluation.retrieval.map_at_r for r in again.results if r.cell.row == "scs_supcon"
    ]
    assert again.comparison.columns[0].means["scs_supcon"].mean == pytest.approx(sum(values) / 2)
    assert "MAP@R in per cent" in again.text
    with pytest.raises(UserError, match="unknown metric 'map'"):
        scs_supcon.compare(table, out=tmp_path / "out", metric="map", **shared)
    with pytest.raises(UserError, match="unknown readout 'features_'; did you mean 'features'"):
        scs_supcon.compare(shapes, readout="features_", out=tmp_path / "out", **shared)
