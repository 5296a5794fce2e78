"""Files, folders and patterns, as people name images on a command line."""

from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path

from scs_supcon.data.image_io import SUFFIXES
from scs_supcon.errors import UserError


def find_images(named: Iterable[str]) -> list[Path]:
    """Return the named files and every image in named folders, each once.

    A pattern stands for the files and folders that match it, as if the shell had put them there.
    """
    found: dict[Path, None] = {}
    for name in named:
        matching = dict.fromkeys(_matching(name))
        if not matching:
            raise UserError(
                f"no images at {name}: give files, folders or patterns such as 'x/*.jpg'"
            )
        found |= matching
    return list(found)


def _matching(name: str) -> Iterator[Path]:
    if Path(name).exists() or not has_magic(name):
        yield from _inside(Path(name))
        return
    for match in sorted(glob(name, recursive=True)):  # noqa: PTH207 (pathlib has no absolute ones)
        yield from _inside(Path(match))


def _inside(path: Path) -> Iterator[Path]:
    """Every image in a folder; or the file itself, and if it is not there its reader says so."""
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if _is_image(file.relative_to(path)) and file.is_file():
            yield file


def _is_image(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden
