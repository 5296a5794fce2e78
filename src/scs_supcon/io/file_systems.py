"""Find out whether the locks of a folder can be trusted by several machines."""

import re
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mounts")

_OF_THE_HOST = "which is shared with the host: its locks may hold within this machine only"
_OFTEN_NONE = "whose locks often do nothing, or hold within one machine only"
UNCERTAIN = {
    "beegfs": "whose locks hold between machines only with tuneUseGlobalFileLocks",
    **dict.fromkeys(("9p", "virtiofs", "vboxsf"), _OF_THE_HOST),
    **dict.fromkeys(("fuse", "afs"), _OFTEN_NONE),  # fuse.sshfs, fuse.s3fs, fuse.rclone, …
}
"""What is said about types of file systems whatever their options are."""


class Mount(NamedTuple):
    """A mounted file system."""

    point: str
    kind: str
    options: tuple[str, ...]


def lock_caution(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return a caution if locks in a folder may not hold between machines; empty if they do.

    It is known from the type and the options of the mounted file system, on Linux only. Folders
    of one machine, NFS and parallel file systems with working locks give no caution.

    Args:
        folder: need not exist.
        mounts: the list of mounted file systems.
    """
    mount = find_mount(folder, mounts)
    if mount is None:
        return ""
    reason = _reason(mount)
    return reason and (
        f"{folder} is on {mount.kind} ({mount.point}), {reason}: use this folder from one machine "
        "at a time; see docs/scale.md"
    )


def find_mount(folder: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the file system that holds a folder; None if it cannot be known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = folder.resolve()
    chosen: Mount | None = None
    for line in lines:
        words = line.split(" ")
        if len(words) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[1])
        # Of several mounts at one place, the last one is visible.
        if path.is_relative_to(point) and (chosen is None or len(point) >= len(chosen.point)):
            chosen = Mount(point, words[2], tuple(words[3].split(",")))
    return chosen


def _reason(mount: Mount) -> str:
    options = mount.options
    if mount.kind in ("nfs", "nfs4"):
        local = [o for o in options if o == "nolock" or re.fullmatch("local_lock=(flock|all)", o)]
        return f"mounted with {local[0]}: its locks hold within one machine only" if local else ""
    if mount.kind == "lustre":
        return "" if "flock" in options else "mounted without the option flock"
    if mount.kind in ("cifs", "smb3"):
        return "mounted with nobrl: it has no locks" if "nobrl" in options else ""
    return UNCERTAIN.get(mount.kind.partition(".")[0], "")
