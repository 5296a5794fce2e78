"""`scs datasets`, and named datasets in the other commands."""

import json
import tarfile
from dataclasses import replace

from scs_supcon.data.named.registry import NAMED, load_named
from tiny_datasets import make_tiny

SHORT = (
    *("--epochs", "1", "--workers", "0", "--device", "cpu", "--batch-size", "8", "--quiet"),
    *("--encoder", "tiny", "--from-scratch", "--set", "probe.epochs=1", "--set", "probe.views=1"),
    *("--set", "data.val_share=0.25"),
)


def test_the_list_says_what_is_complete(scs, tmp_path, monkeypatch):
    make_tiny("cub200", tmp_path, monkeypatch)
    folder = make_tiny("cifar10", tmp_path, monkeypatch)
    (folder / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    monkeypatch.setenv("SCS_DATA", str(tmp_path))
    result = scs("datasets")
    assert result.code == 0
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.strip()}
    assert set(NAMED) <= set(lines)
    assert f"complete, in {tmp_path / 'cub200'}" in lines["cub200"]
    assert "has no test_batch.bin" in lines["cifar10"]
    assert f"not in {tmp_path / 'voc2005'}" in lines["voc2005"]
    rows = {row["name"]: row for row in json.loads(scs("datasets", "--json").out)}
    assert rows["cub200"]["complete"] and not rows["cifar10"]["complete"]
    assert (rows["cub200"]["train"], rows["cub200"]["test"]) == (8, 4)


def test_the_list_with_a_folder(scs, tmp_path, monkeypatch):
    monkeypatch.delenv("SCS_DATA", raising=False)
    folder = make_tiny("voc2005", tmp_path, monkeypatch)
    assert f"complete, in {folder}" in scs("datasets", "--data", f"voc2005={folder}").out
    assert "SCS_DATA is not set" in scs("datasets").out
    assert "write NAME=FOLDER" in scs("datasets", "--data", folder).err


def test_download(scs, tmp_path, monkeypatch):
    folder = make_tiny("cub200", tmp_path, monkeypatch)
    archive = tmp_path / "CUB_200_2011.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "CUB_200_2011", "CUB_200_2011")
    arguments = ("datasets", "download", "cub200", "--to", tmp_path / "new", "--quiet")
    result = scs(*arguments, "--url", f"file://{archive}")
    assert result.code == 2 and "its MD5 is" in result.err
    without_md5 = tuple(replace(a, md5=None) for a in NAMED["cub200"].archives)
    monkeypatch.setitem(NAMED, "cub200", replace(NAMED["cub200"], archives=without_md5))
    result = scs(*arguments, "--url", f"file://{archive}")
    assert result.code == 0, result.err
    assert "overlap with ImageNet" in result.out
    assert f"scs train cub200 --data {tmp_path / 'new'}" in result.out


def test_train_doctor_report_and_predict(scs, tmp_path, monkeypatch):
    name = "cifar100"
    monkeypatch.chdir(tmp_path)
    folder = make_tiny(name, tmp_path / "data", monkeypatch)
    doctor = scs("doctor", name, "--data", folder)
    assert "known issue" in doctor.out
    assert (tmp_path / f"{name}-problems.csv").exists()
    result = scs("train", name, "--data", folder, "--out", "run", *SHORT)
    assert result.code == 0, result.err
    recipe = (tmp_path / "run" / "recipe.toml").read_text()
    assert f'source = "{name}={folder}"' in recipe
    assert (tmp_path / "run" / "report.html").exists()
    load_named(name, folder).open(0).save("image.png")
    assert scs("predict", "run", "image.png", "--quiet").code == 0
    evaluated = scs("evaluate", "run", name, "--data", folder, "--quiet", "--json")
    assert json.loads(evaluated.out)["split"] == "test"
    assert (tmp_path / "run" / "evaluations" / f"{name}.json").exists()


def test_known_issues_are_printed_before_training(scs, tmp_path, monkeypatch):
    folder = make_tiny("stanford_dogs", tmp_path, monkeypatch)
    shown = tuple(word for word in SHORT if word != "--quiet")
    result = scs("train", "stanford_dogs", "--data", folder, "--dry-run", *shown)
    assert result.code == 0, result.err
    assert "trained on the test images" in result.err


def test_compare_a_named_dataset(scs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = make_tiny("cifar100", tmp_path / "data", monkeypatch)
    table = tmp_path / "table.toml"
    table.write_text('methods = ["supcon"]\n[[columns]]\ndata = "cifar100"\nfrom_scratch = true\n')
    result = scs("compare", table, "--data", f"cifar100={folder}", "--dry-run", "--quiet")
    assert result.code == 0, result.err
    assert "cifar100" in result.out
    result = scs("compare", "cifar100", "--data", folder, "--methods", "supcon", "--dry-run")
    assert result.code == 0, result.err
    assert "known issue" in result.err
    result = scs("compare", tmp_path, "--data", folder, "--dry-run")
    assert result.code == 2 and "leave out --data" in result.err
