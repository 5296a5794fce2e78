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
    sweep,
    write_checkpoint,
)


def checkpoint(number):
    return Checkpoint({"a": torch.full((3,), float(number))}, {"number": number, "x": 0.1})


def write(folder, *numbers, stage="pretrain"):
    for number in numbers:
        write_checkpoint(folder, stage, checkpoint(number))


def read(folder, stage="pretrain"):
    found = read_checkpoint(folder, stage)
    assert torch.equal(found.tensors["a"], checkpoint(found.state["number"]).tensors["a"])
    return found.state["number"]


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_nothing_yet(tmp_path):
    assert read_checkpoint(tmp_path / "none", "pretrain") is None
    assert last_stage(tmp_path / "none") is None
    sweep(tmp_path / "none")


def test_the_newest_is_read_and_two_are_kept(tmp_path):
    write(tmp_path, 1, 2, 3)
    write(tmp_path, 4, stage="probe")
    assert read(tmp_path) == 3
    assert read(tmp_path, "probe") == 4
    assert last_stage(tmp_path) == "probe"
    stems = sorted({name.partition(".")[0] for name in names(tmp_path)})
    assert stems == ["pretrain-000002", "pretrain-000003", "probe-000004"]


def test_the_hashes_are_those_of_sha256sum(tmp_path):
    write(tmp_path, 1)
    for line in (tmp_path / "pretrain-000001.sha256").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest


def test_every_dtype_and_layout_comes_back(tmp_path):
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
    found = read_checkpoint(tmp_path, "pretrain").tensors
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


DAMAGES = [flip, truncate, lambda path: path.write_bytes(b""), lambda path: path.unlink()]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["safetensors", "json"])
def test_a_damaged_one_is_passed_over_with_a_warning(tmp_path, suffix, damage):
    write(tmp_path, 1, 2)
    damage(tmp_path / f"pretrain-000002.{suffix}")
    with pytest.warns(RuntimeWarning, match="pretrain-000002 .* cannot be used"):
        assert read(tmp_path) == 1
    write(tmp_path, 3)
    assert read(tmp_path) == 3


@pytest.mark.parametrize("damage", DAMAGES[:3])
def test_a_damaged_hash(tmp_path, damage):
    write(tmp_path, 1, 2)
    damage(tmp_path / "pretrain-000002.sha256")
    with pytest.warns(RuntimeWarning, match="pretrain-000002 .* cannot be used"):
        assert read(tmp_path) == 1


def test_all_damaged(tmp_path):
    write(tmp_path, 1, 2)
    for number in (1, 2):
        truncate(tmp_path / f"pretrain-00000{number}.json")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(UserError, match=r"delete pretrain-000001\.\*, pretrain-000002\.\* there"),
    ):
        read(tmp_path)


def test_a_stage_without_a_good_one_begins_after_the_one_before(tmp_path):
    write(tmp_path, 1, 2)
    whole = names(tmp_path)
    write(tmp_path, 3, 4, stage="probe")
    for number in (3, 4):
        truncate(tmp_path / f"probe-00000{number}.json")
    with pytest.warns(RuntimeWarning, match="probe-00000"):
        stage, found = read_last(tmp_path)
    assert (stage, found.state["number"]) == ("pretrain", 2)
    assert names(tmp_path) == whole
    assert read_checkpoint(tmp_path, "probe") is None


def test_nothing_is_removed_where_nothing_is_good(tmp_path):
    assert read_last(tmp_path) is None
    write(tmp_path, 1)
    write(tmp_path, 2, stage="probe")
    whole = names(tmp_path)
    truncate(tmp_path / "pretrain-000001.json")
    with pytest.warns(RuntimeWarning), pytest.raises(UserError, match=r"-000001\.\*, probe-000002"):
        read(tmp_path)
    truncate(tmp_path / "probe-000002.json")
    with pytest.warns(RuntimeWarning), pytest.raises(UserError, match="of stage pretrain in"):
        read_last(tmp_path)
    assert names(tmp_path) == whole


def test_a_writer_killed_at_any_moment_leaves_the_last_one_good(tmp_path):
    """Whatever prefix of the writing happened, the newest whole checkpoint is read in silence."""
    write(tmp_path, 1)
    whole = names(tmp_path)
    order = ("safetensors", "json", "sha256")
    for done, suffix in enumerate(order):
        for earlier in order[:done]:
            (tmp_path / f"pretrain-000002.{earlier}").write_bytes(b"whole")
        (tmp_path / f".pretrain-000002.{suffix}.0a1b.tmp").write_bytes(b"half")
        assert read(tmp_path) == 1
        sweep(tmp_path)
        assert names(tmp_path) == whole


class Evil:
    def __reduce__(self):
        return (os.mkdir, (self.trap,))


def test_a_pickle_in_disguise_is_refused_and_never_run(tmp_path):
    """Even with the right hash beside it."""
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
    assert trap.exists()  # it would have been


def test_the_files_of_others_are_left_alone(tmp_path):
    for name in ("notes.txt", "my-model.json", "pretrain-1.json", ".hidden.tmp"):
        (tmp_path / name).write_text("mine")
    write(tmp_path, 1, 2, 3)
    sweep(tmp_path)
    mine = [name for name in names(tmp_path) if not name.startswith("pretrain-0")]
    assert sorted(mine) == [".hidden.tmp", "my-model.json", "notes.txt", "pretrain-1.json"]


def test_another_format_is_not_guessed_at(tmp_path):
    write(tmp_path, 1)
    path = tmp_path / "pretrain-000001.json"
    changed = path.read_text().replace('"format_version": 1', '"format_version": 2')
    sums = tmp_path / "pretrain-000001.sha256"
    before, after = (hashlib.sha256(t.encode()).hexdigest() for t in (path.read_text(), changed))
    path.write_text(changed)
    sums.write_text(sums.read_text().replace(before, after))
    with pytest.warns(RuntimeWarning, match="format 2, not 1"), pytest.raises(UserError):
        read(tmp_path)
