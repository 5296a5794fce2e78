import hashlib
import os
import pickle

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.runs.checkpoint_io import (
    Checkpoint,
    last_stage,
    read_checkpoint,
    read_last,
    remove_incomplete,
    write_checkpoint,
)


def checkpoint(number):
    return Checkpoint({"a": torch.full((3,), float(number))}, {"number": number, "x": 0.1})


def write(folder, *numbers, stage="pretrain"):
    for number in numbers:
        write_checkpoint(folder, stage, checkpoint(number))


def read(folder, stage="pretrain"):
    saved = read_checkpoint(folder, stage)
    assert torch.equal(saved.tensors["a"], checkpoint(saved.state["number"]).tensors["a"])
    return saved.state["number"]


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_new_folder_has_no_checkpoints(tmp_path):
    assert read_checkpoint(tmp_path / "none", "pretrain") is None
    assert last_stage(tmp_path / "none") is None
    remove_incomplete(tmp_path / "none")


def test_the_newest_checkpoint_is_read_and_two_are_kept_per_stage(tmp_path):
    write(tmp_path, 1, 2, 3)
    write(tmp_path, 4, stage="probe")
    assert read(tmp_path) == 3
    assert read(tmp_path, "probe") == 4
    assert last_stage(tmp_path) == "probe"
    stems = sorted({name.partition(".")[0] for name in names(tmp_path)})
    assert stems == ["pretrain-000002", "pretrain-000003", "probe-000004"]


def test_the_name_of_a_stage_may_contain_digits(tmp_path):
    write(tmp_path, 1)
    write(tmp_path, 2, 3, 4, stage="fold1")
    write(tmp_path, 5, stage="fold2")
    assert (read(tmp_path, "fold1"), read(tmp_path, "fold2")) == (4, 5)
    assert last_stage(tmp_path) == "fold2"
    stems = sorted({name.partition(".")[0] for name in names(tmp_path)})
    assert stems == ["fold1-000003", "fold1-000004", "fold2-000005", "pretrain-000001"]


def test_folds_of_equal_number_are_in_order(tmp_path):
    for number, stage in enumerate(("fold2", "fold10", "probe", "fold1")):
        write(tmp_path / str(number), 1, stage=stage)
        for path in (tmp_path / str(number)).iterdir():
            path.rename(tmp_path / path.name)
        assert last_stage(tmp_path) == ("fold2", "fold10", "probe", "probe")[number]


def test_the_order_of_checkpoints_does_not_depend_on_the_clock(tmp_path):
    write(tmp_path, 1, 2)
    for file in tmp_path.glob("pretrain-000001.*"):  # the clock was set back between them
        os.utime(file, (2**31, 2**31))
    write(tmp_path, 3)
    stems = sorted({name.partition(".")[0] for name in names(tmp_path)})
    assert stems == ["pretrain-000002", "pretrain-000003"]
    assert read(tmp_path) == 3


def test_checksums_have_the_format_of_sha256sum(tmp_path):
    write(tmp_path, 1)
    for line in (tmp_path / "pretrain-000001.sha256").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest


def test_every_dtype_and_layout_is_restored(tmp_path):
    shared = torch.randn(4)
    tensors = {
        "bfloat16": torch.randn(3).bfloat16(),
        "float64": torch.randn(3, dtype=torch.float64),
        "bool": torch.tensor([True, False]),
        "long": torch.tensor(2**60 + 1),
        "empty": torch.zeros(0, 3),
        "empty too": torch.zeros(0, 3),
        "columns": torch.randn(3, 4).T,
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "shared": shared,
        "shared too": shared,
        "slice": torch.randn(10)[2:5],
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    write_checkpoint(tmp_path, "pretrain", Checkpoint(tensors, {}))
    restored = read_checkpoint(tmp_path, "pretrain").tensors
    for name, tensor in tensors.items():
        assert restored[name].dtype == tensor.dtype, name
        assert torch.equal(restored[name], tensor), name


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES = [flip, truncate, lambda path: path.write_bytes(b""), lambda path: path.unlink()]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["safetensors", "json"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, suffix, damage):
    write(tmp_path, 1, 2)
    damage(tmp_path / f"pretrain-000002.{suffix}")
    with pytest.warns(RuntimeWarning, match="pretrain-000002 .* is damaged"):
        assert read(tmp_path) == 1
    write(tmp_path, 3)
    assert read(tmp_path) == 3


@pytest.mark.parametrize("damage", DAMAGES[:3])
def test_a_checkpoint_with_damaged_checksums_is_skipped(tmp_path, damage):
    write(tmp_path, 1, 2)
    damage(tmp_path / "pretrain-000002.sha256")
    with pytest.warns(RuntimeWarning, match="pretrain-000002 .* is damaged"):
        assert read(tmp_path) == 1


def test_damage_to_all_checkpoints_is_an_error(tmp_path):
    write(tmp_path, 1, 2)
    for number in (1, 2):
        truncate(tmp_path / f"pretrain-00000{number}.json")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(UserError, match=r"delete pretrain-000001\.\*, pretrain-000002\.\* there"),
    ):
        read(tmp_path)


def test_a_stage_without_an_intact_checkpoint_starts_after_the_previous_stage(tmp_path):
    write(tmp_path, 1, 2)
    complete = names(tmp_path)
    write(tmp_path, 3, 4, stage="probe")
    for number in (3, 4):
        truncate(tmp_path / f"probe-00000{number}.json")
    with pytest.warns(RuntimeWarning, match="probe-00000"):
        stage, saved = read_last(tmp_path)
    assert (stage, saved.state["number"]) == ("pretrain", 2)
    assert names(tmp_path) == complete
    assert read_checkpoint(tmp_path, "probe") is None


def test_nothing_is_removed_if_all_checkpoints_are_damaged(tmp_path):
    assert read_last(tmp_path) is None
    write(tmp_path, 1)
    write(tmp_path, 2, stage="probe")
    complete = names(tmp_path)
    truncate(tmp_path / "pretrain-000001.json")
    with pytest.warns(RuntimeWarning), pytest.raises(UserError, match=r"-000001\.\*, probe-000002"):
        read(tmp_path)
    truncate(tmp_path / "probe-000002.json")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(UserError, match="all checkpoints of stage pretrain in"),
    ):
        read_last(tmp_path)
    assert names(tmp_path) == complete


def test_a_writer_killed_at_any_moment_leaves_the_previous_checkpoint_intact(tmp_path):
    """After every step of writing, the newest complete checkpoint is read without a warning."""
    write(tmp_path, 1)
    complete = names(tmp_path)
    order = ("safetensors", "json", "sha256")
    for done, suffix in enumerate(order):
        for earlier in order[:done]:
            (tmp_path / f"pretrain-000002.{earlier}").write_bytes(b"whole")
        (tmp_path / f".pretrain-000002.{suffix}.0a1b.tmp").write_bytes(b"half")
        assert read(tmp_path) == 1
        remove_incomplete(tmp_path)
        assert names(tmp_path) == complete


class Evil:
    def __reduce__(self):
        return (os.mkdir, (self.trap,))


def test_a_disguised_pickle_is_rejected_and_never_run(tmp_path):
    """The pickle is not loaded even if its checksum is correct."""
    trap = tmp_path / "trap"
    Evil.trap = str(trap)
    write(tmp_path, 1, 2)
    evil = pickle.dumps(Evil())
    name = "pretrain-000002.safetensors"
    sums = tmp_path / "pretrain-000002.sha256"
    old = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    (tmp_path / name).write_bytes(evil)
    (tmp_path / "pretrain-000003.pt").write_bytes(evil)
    sums.write_text(sums.read_text().replace(old, hashlib.sha256(evil).hexdigest()))
    with pytest.warns(RuntimeWarning, match="SafetensorError"):
        assert read(tmp_path) == 1
    assert not trap.exists()
    pickle.loads(evil)
    assert trap.exists()  # unpickling it does run the code


def test_other_files_are_kept(tmp_path):
    for name in ("notes.txt", "my-model.json", "pretrain-1.json", ".hidden.tmp"):
        (tmp_path / name).write_text("mine")
    write(tmp_path, 1, 2, 3)
    remove_incomplete(tmp_path)
    others = [name for name in names(tmp_path) if not name.startswith("pretrain-0")]
    assert sorted(others) == [".hidden.tmp", "my-model.json", "notes.txt", "pretrain-1.json"]


def test_a_checkpoint_of_another_format_version_is_not_read(tmp_path):
    write(tmp_path, 1)
    path = tmp_path / "pretrain-000001.json"
    changed = path.read_text().replace('"format_version": 1', '"format_version": 2')
    sums = tmp_path / "pretrain-000001.sha256"
    before, after = (hashlib.sha256(t.encode()).hexdigest() for t in (path.read_text(), changed))
    path.write_text(changed)
    sums.write_text(sums.read_text().replace(before, after))
    with (
        pytest.warns(RuntimeWarning, match="format version 2, expected 1"),
        pytest.raises(UserError),
    ):
        read(tmp_path)
