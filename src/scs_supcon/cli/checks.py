"""Checks of arguments that take no time, before torch and timm are imported, which takes seconds.

Each check raises the error that the command would raise anyway, only later.
"""

import pkgutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from scs_supcon.errors import UserError, did_you_mean, unknown_method


def check_data(source: str) -> None:
    """Raise an error if there is no such file, folder or built-in dataset."""
    from scs_supcon.data.load import load_images
    from scs_supcon.data.named.registry import split_source
    from scs_supcon.data.remote import check_address, is_address

    check_address(source)
    if not is_address(source) and split_source(source) is None and not Path(source).exists():
        load_images(source)  # explains what is expected, unless it is a built-in dataset


def check_training(
    source: str, method: str | None, settings: Sequence[str], **files: Path | None
) -> None:
    """Raise an error for missing files, an unknown method, or a misspelt setting.

    Args:
        source: the data.
        method: with or without a preset.
        settings: `section.key=value` assignments.
        files: files by the names of their options, such as `init_from`.
    """
    check_data(source)
    for name, path in files.items():
        is_named = name == "recipe" and str(path) == "paper"
        if path is not None and not is_named and not path.exists():
            siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} {path} does not exist{did_you_mean(path.name, siblings)}")
    if method is not None:
        check_method(method)
    if settings:
        from scs_supcon.recipe import override

        override({}, settings)


def check_method(text: str) -> None:
    """Raise an error for an unknown method of this package, given with or without a preset."""
    name = text.partition("@")[0]
    spec = find_spec("scs_supcon")
    folders = [f"{folder}/methods" for folder in (spec and spec.submodule_search_locations) or ()]
    names = sorted(module.name for module in pkgutil.iter_modules(folders) if not module.ispkg)
    if ":" not in text and name not in names:
        raise unknown_method(name, names)


def check_images(run: Path, images: Sequence[str]) -> list[Path]:
    """Return the image files; raise an error if there is no run, or none of the files exists."""
    from scs_supcon.cli.app import echo
    from scs_supcon.data.load import find_images
    from scs_supcon.runs.layout import find_model

    find_model(run)
    skipped: list[Path] = []
    files = find_images(images, skipped)
    if skipped:
        listed = ", ".join(map(str, skipped[:3])) + (", …" if len(skipped) > 3 else "")
        echo(f"skipped (no image extension): {len(skipped):,}, {listed}", err=True)
    if not any(file.exists() for file in files):
        first = files[0]
        siblings = [p.name for p in first.parent.iterdir()] if first.parent.is_dir() else []
        raise UserError(f"{first} does not exist{did_you_mean(first.name, siblings)}")
    return files
