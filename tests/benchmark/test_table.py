"""The table file and its errors."""

import pytest

from scs_supcon.benchmark.table import make_table, method_names, read_table_file, write_table_file
from scs_supcon.errors import UserError
from scs_supcon.methods import available

BIRDS = {"data": "photos/birds", "encoder": "resnet18", "frozen": True}


def test_cross_entropy_is_always_included():
    table = make_table(methods=["supcon"], columns=[BIRDS])
    assert table.rows == ("supcon", "baseline")
    assert table.control_row == "supcon"
    table = make_table(methods=["baseline", "supcon"], columns=[BIRDS])
    assert table.rows == ("baseline", "supcon")


def test_rows_and_columns_have_names():
    rows = ["scs_supcon@paper", {"method": "scs_supcon", "name": "t = 5", "settings": ["seed=1"]}]
    table = make_table(
        **{"methods": rows, "columns": [BIRDS, {"data": "digits", "name": "numbers"}]}
    )
    assert table.rows == ("scs_supcon@paper", "t = 5", "baseline")
    assert [column.name for column in table.columns] == ["birds, resnet18", "numbers"]


def test_a_written_table_is_read_back(tmp_path):
    table = make_table(methods=["supcon"], columns=[BIRDS], folds=5, settings=["pretrain.lr=0.1"])
    (tmp_path / "table.toml").write_text(write_table_file(table))
    assert read_table_file(tmp_path / "table.toml") == table


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"methods": ["supcom"]}, "did you mean 'supcon'"),
        ({"methods": []}, "methods"),
        ({"columns": []}, "columns"),
        ({"columns": [{"encoder": "x"}]}, "columns.0.data is missing"),
        ({"columns": [{"data": "x", "wieghts": "y"}]}, "did you mean 'weights'"),
        ({"seedz": 3}, "unknown key 'seedz'; did you mean 'seeds'"),
        ({"seeds": 0}, "seeds: it should be greater"),
        ({"folds": 1}, "folds"),
        ({"columns": [BIRDS, BIRDS]}, "two columns are called 'birds, resnet18'"),
        ({"control": "simclr"}, "the control 'simclr' is not a row"),
        (
            {"methods": ["supcon", {"method": "simclr", "name": "kNN"}]},
            "kNN is part of every comparison",
        ),
    ],
)
def test_errors_are_explained(values, message):
    with pytest.raises(UserError) as error:
        make_table(**{"methods": ["supcon"], "columns": [BIRDS], **values})
    assert message in str(error.value)


def test_a_file_that_is_not_a_table(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the table: .*gone\.toml"):
        read_table_file(tmp_path / "gone.toml")
    (tmp_path / "odd.toml").write_text("methods = ")
    with pytest.raises(UserError, match=r"odd\.toml"):
        read_table_file(tmp_path / "odd.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(UserError, match=r"empty\.toml: methods is missing"):
        read_table_file(tmp_path / "empty.toml")


def test_a_file_cannot_import_code(tmp_path):
    (tmp_path / "loss.py").write_text("raise SystemExit('was run')")
    for row in (f'"{tmp_path}/loss.py:Soft"', f'{{ method = "{tmp_path}/loss.py:Soft" }}'):
        (tmp_path / "table.toml").write_text(f'methods = [{row}]\n[[columns]]\ndata = "shapes"\n')
        with pytest.raises(UserError, match="never imported because a file names it"):
            read_table_file(tmp_path / "table.toml")


def test_names_on_the_command_line():
    assert method_names("supcon, simclr,supcon") == ("supcon", "simclr")
    assert method_names("scs_supcon,all")[0] == "scs_supcon"
    assert sorted(method_names("all")) == available()
    with pytest.raises(UserError, match="--methods is empty"):
        method_names(" ,")


@pytest.mark.parametrize("size", [{"seeds": 65_536}, {"seeds": 100, "folds": 26}])
def test_a_table_with_more_runs_than_anybody_trains_is_an_error(size):
    with pytest.raises(UserError, match=r"runs .*; at most 5,000 are supported: reduce seeds"):
        make_table(methods=["supcon"], columns=[{"data": "shapes"}], **size)
