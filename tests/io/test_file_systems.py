"""File systems whose locks do not hold between machines are recognised by their mounts."""

from pathlib import Path

import pytest

from scs_supcon.io.file_systems import find_mount, lock_caution


def mounts(tmp_path, *lines):
    file = tmp_path / "mounts"
    file.write_text("/dev/sda1 / ext4 rw,relatime 0 0\n" + "".join(f"{x} 0 0\n" for x in lines))
    return file


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("ext4", "rw", ""),
        ("nfs4", "rw,vers=4.2,local_lock=none", ""),
        ("nfs", "rw,vers=3,nolock", "mounted with nolock"),
        ("nfs", "rw,vers=3,local_lock=all", "mounted with local_lock=all"),
        ("nfs", "rw,vers=3,local_lock=posix", ""),
        ("lustre", "rw,flock", ""),
        ("lustre", "rw,localflock", "without the option flock"),
        ("lustre", "rw", "without the option flock"),
        ("cifs", "rw", ""),
        ("cifs", "rw,nobrl", "it has no locks"),
        ("beegfs", "rw", "tuneUseGlobalFileLocks"),
        ("fuse.sshfs", "rw", "often do nothing"),
        ("fuse.rclone", "rw", "often do nothing"),
        ("9p", "rw", "within this machine only"),
    ],
)
def test_the_type_and_the_options_decide(tmp_path, kind, options, reason):
    file = mounts(tmp_path, f"server:/x /shared {kind} {options}")
    caution = lock_caution(Path("/shared/runs/new"), file)
    assert reason in caution
    assert bool(caution) == bool(reason)
    assert lock_caution(Path("/elsewhere"), file) == ""


def test_the_innermost_and_last_mount_counts(tmp_path):
    file = mounts(
        tmp_path,
        "a /shared fuse.sshfs rw",
        "b /shared/in\\040side xfs rw",
        "c /shared/twice fuse.s3fs rw",
        "d /shared/twice ext4 rw",
    )
    assert find_mount(Path("/shared/x"), file).kind == "fuse.sshfs"
    assert find_mount(Path("/sharedx"), file).kind == "ext4"
    assert find_mount(Path("/shared/in side/x"), file).kind == "xfs"
    assert find_mount(Path("/shared/twice"), file).kind == "ext4"


def test_without_a_list_of_mounts_nothing_is_said(tmp_path):
    assert lock_caution(tmp_path, tmp_path / "none") == ""


def test_this_machine_is_known(tmp_path):
    if Path("/proc/self/mounts").exists():
        assert find_mount(tmp_path) is not None
