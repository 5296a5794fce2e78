"""Every format is read back by an independent reader."""

import csv
import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from scs_supcon.errors import UserError
from scs_supcon.inference import Embeddings, Prediction
from scs_supcon.inference.writing import check_vector_file, put, write_vectors, writer

RECORDS = (
    Prediction("a.png", "wren", 0.75, (("wren", 0.75), ("robin", 0.2)), False, "wren", 0.9),
    Prediction(
        'odd, "name".jpg', "robin", 1 / 3, (("robin", 1 / 3), ("wren", 0.3)), True, "wren", -0.125
    ),
)


def test_a_table_names_classes_and_those_that_are_none(capsys):
    put(writer("table")(RECORDS), None)
    assert capsys.readouterr().out == (
        "a.png            wren 75.0%, robin 20.0%\n"
        'odd, "name".jpg  none of these; robin 33.3%, wren 30.0%\n'
    )


def test_csv_is_read_back_whatever_the_names(tmp_path):
    put(writer("csv")(RECORDS), tmp_path / "new" / "names.csv")
    with (tmp_path / "new" / "names.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [record.name for record in RECORDS]
    assert [row["class"] for row in rows] == ["wren", "robin"]
    assert [float(row["probability"]) for row in rows] == pytest.approx([0.75, 1 / 3], abs=1e-6)
    assert [row["none_of_these"] for row in rows] == ["False", "True"]
    assert [row["nearest"] for row in rows] == ["wren", "wren"]
    assert [float(row["similarity"]) for row in rows] == [0.9, -0.125]


def test_names_are_no_formulas_in_a_spreadsheet_but_numbers_stay_numbers():
    record = Prediction("@a.png", "=1+1", 0.5, (("=1+1", 0.5),), False, "-1", -0.5)
    (row,) = csv.DictReader(io.StringIO(writer("csv")([record])))
    assert (row["image"], row["class"], row["nearest"]) == ("'@a.png", "'=1+1", "-1")
    assert row["similarity"] == "-0.500000"


def test_json_lines_hold_everything_exactly():
    first, second = map(json.loads, io.StringIO(writer("jsonl")(RECORDS)))
    assert first["top"] == {"wren": 0.75, "robin": 0.2}
    assert second == {
        "name": 'odd, "name".jpg',
        "label": "robin",
        "probability": 1 / 3,
        "top": {"robin": 1 / 3, "wren": 0.3},
        "none_of_these": True,
        "nearest": "wren",
        "similarity": -0.125,
    }


@pytest.mark.parametrize("style", ["table", "csv", "jsonl"])
def test_no_records_are_no_error(style):
    assert len(writer(style)(()).splitlines()) == (1 if style == "csv" else 0)


def test_an_unknown_format_is_an_error_with_a_suggestion():
    with pytest.raises(UserError, match=r"unknown format 'cvs': .*did you mean 'csv'\?"):
        writer("cvs")


VECTORS = Embeddings(
    ("a.png", "b.png"),
    np.array([[0.6, 0.8], [1.0, 0.0]], dtype=np.float32),
    np.array([[0.1], [1 / 3]], dtype=np.float32),
    (),
)


def test_vectors_as_parquet(tmp_path):
    file = tmp_path / "v.parquet"
    write_vectors(VECTORS, file)
    rows = pq.read_table(file).to_pydict()
    assert rows["name"] == ["a.png", "b.png"]
    assert np.array_equal(np.array(rows["common"], dtype=np.float32), VECTORS.common)
    assert np.array_equal(np.array(rows["style"], dtype=np.float32), VECTORS.style)


def test_vectors_as_npz_are_read_without_pickle(tmp_path):
    file = tmp_path / "v.npz"
    write_vectors(VECTORS, file)
    with np.load(file, allow_pickle=False) as arrays:
        assert arrays["name"].tolist() == ["a.png", "b.png"]
        assert np.array_equal(arrays["common"], VECTORS.common)
        assert np.array_equal(arrays["style"], VECTORS.style)


@pytest.mark.parametrize("ending", ["parquet", "npz"])
def test_a_method_without_style_and_no_images_at_all(tmp_path, ending):
    file = tmp_path / f"v.{ending}"
    empty = np.empty((0, 3), dtype=np.float32)
    write_vectors(Embeddings((), empty, empty[:, :0], ()), file)
    assert file.stat().st_size > 0


def test_other_vector_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"v\.csv: vectors go to a \.parquet or an \.npz file"):
        check_vector_file(tmp_path / "v.csv")
