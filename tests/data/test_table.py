from pathlib import Path

import pytest

from scs_supcon.data.table import ImageTable, read_table
from scs_supcon.errors import UserError


def read(path: Path, text: str) -> ImageTable:
    path = path / "birds.csv"
    path.write_text(text)
    return read_table(path)


def test_rows_are_sorted_by_name(tmp_path: Path) -> None:
    table = read(
        tmp_path, '\ufefflabel, image_path ,fold\nwren,b.png,1\n\nfinch, a.png,0\n"x,y",c.png,-1\n'
    )
    assert table == ImageTable(
        names=("a.png", "b.png", "c.png"),
        labels=("finch", "wren", "x,y"),
        splits=None,
        folds=(0, 1, -1),
        groups=None,
        unread=(),
    )


def test_splits_may_have_their_usual_names(tmp_path: Path) -> None:
    table = read(tmp_path, "image_path,label,split\na,x,Training\nb,x,valid\nc,x,TEST\n")
    assert table.splits == ("train", "val", "test")


def test_column_names_are_case_insensitive(tmp_path: Path) -> None:
    table = read(tmp_path, "Image_Path,LABEL,Split,Site\na,x,train,north\n")
    assert (table.names, table.splits, table.unread) == (("a",), ("train",), ("Site",))


def test_a_parquet_table_is_read_like_csv(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {"image_path": ["b.png", "a.png"], "Label": [2, 10], "group": [None, "g"], "w": [1, 2]}
    pq.write_table(pa.table(rows), tmp_path / "birds.parquet")
    table = read_table(tmp_path / "birds.parquet")
    assert table == ImageTable(("a.png", "b.png"), ("10", "2"), None, None, ("g", ""), ("w",))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match="not a Parquet file"):
        read_table(tmp_path / "broken.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na,x\n", r"no column 'image_path'.*columns are path, label.*rename 'path'"),
        ("image_path,lable\na,x\n", "no column 'label'.*rename 'lable' to 'label'"),
        ("image_path,weight\na,1\n", "no column 'label'; its columns are image_path, weight$"),
        ("image_path;label\na;x\n", "separate the columns by commas"),
        ("", "its columns are none"),
        ("image_path,label\n", "has no rows"),
        ("image_path,label,label\na,x,y\n", "two columns with the same name"),
        ("image_path,label\na,x\nb\n", "row 3: 1 cells, but the header has 2"),
        ("image_path,label\na,\n", "row 2: label is empty"),
        ("image_path,label\n,x\n", "row 2: image_path is empty"),
        ("image_path,label\na,x\nb,x\na,y\n", "lists 'a' twice, in rows 2 and 4"),
        ("image_path,label,split\na,x,trian\n", "row 2: split is 'trian'.*did you mean 'train'"),
        ("image_path,label,split\na,x,train\nb,x,\n", "row 3: split is empty"),
        ("image_path,label,fold\na,x,one\n", "row 2: fold is 'one', expected a whole number"),
        ('image_path,label\n"a,x\n', "not a UTF-8 CSV"),
    ],
)
def test_errors_name_the_row_and_the_expected_value(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, text)


def test_a_table_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "birds.csv").write_bytes("image_path,label\na,Käuzchen\n".encode("latin-1"))
    with pytest.raises(UserError, match="not a UTF-8 CSV"):
        read_table(tmp_path / "birds.csv")
