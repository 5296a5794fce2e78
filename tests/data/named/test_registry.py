"""Where named datasets are looked for."""

import numpy as np
import pytest

from scs_supcon.data.load import load_images, source_name
from scs_supcon.data.named.registry import load_named, named_source, split_source
from scs_supcon.errors import UserError
from tiny_datasets import make_tiny


def test_source_with_a_folder():
    assert split_source("cub200") == ("cub200", None)
    assert split_source("cub200=/data/x=y") == ("cub200", "/data/x=y")
    assert split_source("birds") is None
    assert split_source("a=b") is None


def test_folders_of_the_command_line():
    assert named_source("cub200", ()) == "cub200"
    assert named_source("cub200", ["birds"]) == "cub200=birds"
    assert named_source("cub200", ["cub200"]) == "cub200=cub200"  # a folder of this name
    assert named_source("cub200", ["cifar10=a", "cub200=b"]) == "cub200=b"
    assert named_source("cub200", ["cifar10=a"]) == "cub200"
    assert named_source("birds", ["cifar10=a"]) == "birds"
    with pytest.raises(UserError, match="leave out --data"):
        named_source("birds", ["a"])


def test_short_names_of_data(tmp_path):
    (tmp_path / "my.birds").mkdir()
    assert source_name("cub200=/data/CUB_200_2011") == "cub200"
    assert source_name(str(tmp_path / "my.birds")) == "my.birds"
    assert source_name("tables/birds.csv") == "birds"


def test_without_a_folder_the_error_says_what_to_do(monkeypatch):
    monkeypatch.delenv("SCS_DATA", raising=False)
    with pytest.raises(UserError, match=r"--data DIR, or set SCS_DATA.*scs datasets download"):
        load_named("cub200")


def test_a_folder_of_the_same_name_is_ambiguous(tmp_path, monkeypatch):
    make_tiny("cifar10", tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"both a dataset and a path.*--data cifar10"):
        load_images("cifar10")
    assert len(load_images("cifar10=cifar10")) == 12


def test_a_named_dataset_can_be_split_into_folds(tmp_path, monkeypatch):
    from scs_supcon.data.splits import assign_folds

    images = load_named("cub200", make_tiny("cub200", tmp_path, monkeypatch))
    assert np.bincount(assign_folds(images, 3, seed=0)).tolist() == [4, 4, 4]
