"""Extract archives from the network: files and folders only, below one folder, of limited size."""

import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from scs_supcon.errors import UserError

MAX_BYTES = 8 * 2**30  # of all files of an archive
MAX_FILES = 1_000_000
CHUNK = 2**20

Member = tuple[str, IO[bytes]]


def extract(archive: Path, folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Extract a .zip, .tar or compressed .tar file into a folder.

    Nothing is added to the folder before the whole archive is extracted.

    Args:
        archive: the file.
        folder: created if needed; existing files of the same name are replaced.
        max_bytes: largest total size of the files.

    Raises:
        UserError: the archive is damaged or too large, or contains links, special files, or paths
            outside of the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".extracting-", dir=folder) as temporary:
        try:
            _extract_members(archive, Path(temporary), max_bytes)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, OSError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{archive} cannot be extracted ({type(error).__name__}: {error}): if it is "
                "damaged, remove it and download it again"
            ) from error
        for path in sorted(Path(temporary).iterdir()):
            target = folder / path.name
            if target.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                path.replace(target)


def _extract_members(archive: Path, folder: Path, max_bytes: int) -> None:
    left = max_bytes
    count = 0
    for count, (name, content) in enumerate(_members(archive), start=1):
        if count > MAX_FILES:
            raise UserError(f"{archive} has more than {MAX_FILES:,} files")
        target = folder / _safe_path(archive, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            # Counted while reading: the sizes that an archive states may be wrong.
            while chunk := content.read(CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise UserError(f"{archive} is larger than {max_bytes:,} bytes when extracted")
                file.write(chunk)
    if not count:
        raise UserError(f"{archive} contains no files: remove it and download it again")


def _members(archive: Path) -> Iterator[Member]:
    """Yield name and content of each file; folders are left out."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _special(archive, info.filename)
                if not info.is_dir():
                    with zipped.open(info) as content:
                        yield info.filename, content
        return
    with tarfile.open(archive) as tarred:
        for member in tarred:
            if member.isdir():
                continue
            opened = tarred.extractfile(member) if member.isreg() else None
            if opened is None:
                raise _special(archive, member.name)
            yield member.name, opened


def _safe_path(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise UserError(f"{archive} contains {name!r}, a path outside of the folder")
    return path


def _special(archive: Path, name: str) -> UserError:
    return UserError(f"{archive} contains {name!r}, which is a link or a special file")
