"""Every output format, read back by an independent reader."""

import csv
import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from scs_supcon.errors import UserError
from scs_supcon.inference import Embeddings, Prediction
from scs_supcon.inference.writing import (
    check_embedding_file,
    prediction_formatter,
    write_embeddings,
    write_output,
)

PREDICTIONS = (
    Prediction("a.png", "wren", 0.75, (("wren", 0.75), ("robin", 0.2)), False, "wren", 0.9, 0.5),
    Prediction(
        'odd, "name".jpg',
        "robin",
        1 / 3,
        (("robin", 1 / 3), ("wren", 0.3)),
        True,
        "wren",
        -0.125,
        0.25,
    ),
)


def test_the_table_marks_unknown_images(capsys):
    write_output(prediction_formatter("table")(PREDICTIONS), None)
    assert capsys.readouterr().out == (
        "a.png            wren 75.0%, robin 20.0%\n"
        'odd, "name".jpg  unknown; robin 33.3%, wren 30.0%\n'
    )


def test_csv_can_hold_any_name(tmp_path):
    write_output(prediction_formatter("csv")(PREDICTIONS), tmp_path / "new" / "names.csv")
    with (tmp_path / "new" / "names.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [prediction.name for prediction in PREDICTIONS]
    assert [row["label"] for row in rows] == ["wren", "robin"]
    assert [float(row["probability"]) for row in rows] == pytest.approx([0.75, 1 / 3], abs=1e-6)
    assert [row["unknown"] for row in rows] == ["False", "True"]
    assert [row["nearest"] for row in rows] == ["wren", "wren"]
    assert [float(row["similarity"]) for row in rows] == [0.9, -0.125]
    assert [float(row["threshold"]) for row in rows] == [0.5, 0.25]
    assert [row["label_2"] for row in rows] == ["robin", "wren"]
    assert [float(row["probability_2"]) for row in rows] == [0.2, 0.3]


def test_csv_names_cannot_be_spreadsheet_formulas():
    record = Prediction("@a.png", "=1+1", 0.5, (("=1+1", 0.5),), False, "-1", -0.5, 0.0)
    (row,) = csv.DictReader(io.StringIO(prediction_formatter("csv")([record])))
    assert (row["image"], row["label"], row["nearest"]) == ("'@a.png", "'=1+1", "-1")
    assert row["similarity"] == "-0.500000"


def test_json_lines_hold_exact_values():
    first, second = map(json.loads, io.StringIO(prediction_formatter("jsonl")(PREDICTIONS)))
    assert first["top"] == {"wren": 0.75, "robin": 0.2}
    assert second == {
        "image": 'odd, "name".jpg',
        "label": "robin",
        "probability": 1 / 3,
        "top": {"robin": 1 / 3, "wren": 0.3},
        "unknown": True,
        "nearest": "wren",
        "similarity": -0.125,
        "threshold": 0.25,
    }


@pytest.mark.parametrize("style", ["table", "csv", "jsonl"])
def test_no_predictions_give_an_empty_file(style):
    assert len(prediction_formatter(style)(()).splitlines()) == (1 if style == "csv" else 0)


def test_an_unknown_format_gets_a_suggestion():
    with pytest.raises(UserError, match=r"unknown format 'cvs': .*did you mean 'csv'\?"):
        prediction_formatter("cvs")


EMBEDDINGS = Embeddings(
    ("a.png", "b.png"),
    np.array([[0.6, 0.8], [1.0, 0.0]], dtype=np.float32),
    np.array([[0.1], [1 / 3]], dtype=np.float32),
    (),
)


def test_embeddings_as_parquet(tmp_path):
    file = tmp_path / "v.parquet"
    write_embeddings(EMBEDDINGS, file)
    rows = pq.read_table(file).to_pydict()
    assert rows["image"] == ["a.png", "b.png"]
    assert np.array_equal(np.array(rows["common"], dtype=np.float32), EMBEDDINGS.common)
    assert np.array_equal(np.array(rows["style"], dtype=np.float32), EMBEDDINGS.style)


def test_embeddings_as_npz_are_read_without_pickle(tmp_path):
    file = tmp_path / "v.npz"
    write_embeddings(EMBEDDINGS, file)
    with np.load(file, allow_pickle=False) as arrays:
        assert arrays["image"].tolist() == ["a.png", "b.png"]
        assert np.array_equal(arrays["common"], EMBEDDINGS.common)
        assert np.array_equal(arrays["style"], EMBEDDINGS.style)


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_embeddings_may_be_empty(tmp_path, ending):
    file = tmp_path / f"v.{ending}"
    empty = np.empty((0, 3), dtype=np.float32)
    write_embeddings(Embeddings((), empty, empty[:, :0], ()), file)
    if ending == "npz":
        with np.load(file) as arrays:
            assert (arrays["common"].shape, arrays["style"].shape) == ((0, 3), (0, 0))
    else:
        assert pq.read_table(file).num_rows == 0


def test_other_embedding_files_are_rejected(tmp_path):
    with pytest.raises(UserError, match=r"must end with \.parquet or \.npz, got .*v\.csv"):
        check_embedding_file(tmp_path / "v.csv")
