"""`scs compare` on the command line: output, errors, and where results are written."""

import json
import shutil
from pathlib import Path

QUICK = (
    *("--epochs", "1", "--batch-size", "8", "--device", "cpu", "--set", "probe.epochs=2"),
    *("--set", "probe.views=1", "--set", "data.test_share=0.34", "--set", "data.val_share=0.2"),
)


def test_a_dry_run_lists_the_runs_and_does_not_train(scs, shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = scs("compare", shapes, "--methods", "supcon", "--seeds", "2", "--dry-run", *QUICK)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["supcon", "baseline"] * 2
    assert lines[-1].startswith("4 runs, 4 to do: ")
    assert not list(tmp_path.iterdir())


def test_tables_without_runs_have_dashes(scs, shapes, tmp_path):
    folders = ("--out", tmp_path / "out", "--runs", tmp_path / "runs", "--no-train")
    result = scs("compare", shapes, "--methods", "supcon,simclr", *QUICK, *folders)
    assert result.code == 0, result.err
    rows = {line.split()[0]: line.split()[-1] for line in result.out.splitlines()[2:6]}
    assert rows == {"supcon": "–", "simclr": "–", "baseline": "–", "kNN": "–"}
    assert f"page      {tmp_path / 'out' / 'comparison.html'}" in result.out
    assert not (tmp_path / "runs").exists()
    again = scs("compare", tmp_path / "out" / "comparison.toml", *folders, "--json")
    assert json.loads(again.out)["accuracy"] == {"shapes": {}}


def test_results_are_written_to_comparisons_by_default(scs, shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert scs("compare", shapes, "--methods", "supcon", "--no-train", *QUICK).code == 0
    assert Path("comparisons/shapes/results.csv").is_file()


def test_results_are_named_after_the_folder_of_the_images(scs, shapes, tmp_path, monkeypatch):
    for name, data in (("birds.v1", "../birds.v1"), ("birds.v2", "..")):
        class_folder = shutil.copytree(shapes, tmp_path / name) / "bar"
        monkeypatch.chdir(class_folder if data == ".." else class_folder.parent)
        assert scs("compare", data, "--methods", "supcon", "--no-train", *QUICK).code == 0
        assert Path(f"comparisons/{name}/results.csv").is_file()


def test_a_table_file_cannot_be_combined_with_options_of_the_recipe(scs, tmp_path):
    file = tmp_path / "table.toml"
    file.write_text('methods = ["supcon"]\n[[columns]]\ndata = "shapes"\n')
    result = scs("compare", file, "--seeds", "3", "--epochs", "2")
    assert result.code == 2
    assert "leave out --seeds, --epochs, or edit the file" in result.err
    result = scs("compare", file, "--seeds", "0", "--no-frozen", "--from-scratch")
    assert result.code == 2
    assert "leave out --seeds, --from-scratch, --no-frozen, or edit the file" in result.err


def test_user_errors_are_one_sentence(scs, shapes, tmp_path):
    for arguments, message in (
        (("compare", shapes, "--methods", "supcom"), "did you mean 'supcon'"),
        (("compare", shapes, "--methods", "supcon@x"), "supcon has no presets"),
        (("compare", tmp_path / "gone", "--methods", "supcon"), "gone"),
        (("compare", tmp_path / "gone.toml"), "gone.toml' does not exist"),
        (
            ("compare", shapes, "--methods", "supcon", "--folds", "100"),
            "number of images (24), got 100",
        ),
        (("compare", shapes, "--methods", "supcon", "--jobs", "0"), "--jobs must be"),
        (("compare", shapes, "--methods", "supcon", "--seeds", "0"), "seeds"),
    ):
        result = scs(*arguments)
        assert result.code == 2, result
        assert message in result.err
        assert "Traceback" not in result.err
