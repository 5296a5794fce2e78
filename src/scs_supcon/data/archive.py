"""Zip archives of images, extracted once into the cache."""

from pathlib import Path

from scs_supcon.data.folder import is_hidden
from scs_supcon.data.named.extract import extract
from scs_supcon.device import cache_folder
from scs_supcon.io.hashing import file_sha256
from scs_supcon.io.lock import Lock

COMPLETE = ".complete"


def is_archive(path: Path) -> bool:
    """Return whether a path is a zip archive, by its name."""
    return path.suffix.lower() == ".zip" and path.is_file()


def unpack(archive: Path) -> Path:
    """Return a folder with the files of a zip archive; equal archives share a folder.

    A single folder at the top, such as birds/ in birds.zip, is the folder itself.

    Raises:
        UserError: the archive is damaged or too large, or contains links or paths outside of it.
    """
    folder = cache_folder() / "archives" / file_sha256(archive)
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder / ".lock", wait=True):
        if not (folder / COMPLETE).exists():
            extract(archive, folder)
            (folder / COMPLETE).touch()
    visible = [path for path in folder.iterdir() if not is_hidden(path.name)]
    if len(visible) == 1 and visible[0].is_dir() and any(p.is_dir() for p in visible[0].iterdir()):
        return visible[0]
    return folder
