"""Checkpoints: tensors as safetensors, the rest as JSON, the SHA-256 of both beside them.

`pretrain-000007.safetensors`, `.json` and `.sha256` make one checkpoint. The last of them is
written last: without it the checkpoint does not exist, and with it every byte is checked before it
is used. Reading runs no code: there is no pickle here.
"""

import hashlib
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_bytes, write_text

FORMAT_VERSION = 1
KEPT = 2
FILE = re.compile(r"\.?([a-z_]+-\d{6,})\.(?:safetensors|json|sha256)(?:\.[0-9a-f]+\.tmp)?")


@dataclass(frozen=True)
class Checkpoint:
    """What a stage needs to go on."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


class _Damaged(Exception):
    """A checkpoint is not what was written."""


def write_checkpoint(folder: Path, stage: str, checkpoint: Checkpoint) -> None:
    """Write a new checkpoint, then remove all but the newest two of its stage."""
    names = _whole(folder)
    number = int(names[-1].rpartition("-")[2]) + 1 if names else 1
    name = f"{stage}-{number:06d}"
    document = {"format_version": FORMAT_VERSION, "state": checkpoint.state}
    parts = {
        f"{name}.safetensors": safetensors.torch.save(_plain(checkpoint.tensors)),
        f"{name}.json": json.dumps(document).encode(),
    }
    for part, content in parts.items():
        write_bytes(folder / part, content)
    sums = (f"{hashlib.sha256(content).hexdigest()}  {part}\n" for part, content in parts.items())
    write_text(folder / f"{name}.sha256", "".join(sums))
    for old in _whole(folder, stage)[:-KEPT]:
        _remove(folder, old)


def read_checkpoint(folder: Path, stage: str) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a stage, or None if there never was one."""
    names = _whole(folder, stage)
    _, found = _newest_usable(folder, names)
    if names and found is None:
        every = _whole(folder)
        raise _none_usable(folder, every[every.index(names[0]) :])  # later ones build on it
    return found


def read_last(folder: Path) -> tuple[str, Checkpoint] | None:
    """Return the stage and the content of the newest undamaged checkpoint of a run.

    What was saved after it is removed, so that a stage without any begins where the one before
    it ended.
    """
    names = _whole(folder)
    name, found = _newest_usable(folder, names)
    if found is None:
        if names:
            raise _none_usable(folder, names)
        return None
    for damaged in names[names.index(name) + 1 :]:
        _remove(folder, damaged)
    return name.rpartition("-")[0], found


def last_stage(folder: Path) -> str | None:
    """Return the stage that was saved last."""
    names = _whole(folder)
    return names[-1].rpartition("-")[0] if names else None


def sweep(folder: Path) -> None:
    """Remove what a killed writer left behind: temporary files, and parts without their hash."""
    whole = set(_whole(folder))
    for file, name in _files(folder):
        if file.startswith(".") or name not in whole:
            (folder / file).unlink(missing_ok=True)


def _newest_usable(folder: Path, names: list[str]) -> tuple[str, Checkpoint | None]:
    for name in reversed(names):
        try:
            return name, _read(folder, name)
        except _Damaged as damage:
            message = (
                f"checkpoint {name} in {folder} cannot be used ({damage}); trying the one before"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)
    return "", None


def _none_usable(folder: Path, names: list[str]) -> UserError:
    files = ", ".join(f"{name}.*" for name in names)
    return UserError(
        f"no checkpoint of stage {names[0].rpartition('-')[0]} in {folder} can be used: bring one "
        f"back from a backup, or delete {files} there to begin that stage again"
    )


def _remove(folder: Path, name: str) -> None:
    # The hash goes first: what is half removed does not look like a damaged checkpoint.
    for suffix in ("sha256", "json", "safetensors"):
        (folder / f"{name}.{suffix}").unlink(missing_ok=True)


def _read(folder: Path, name: str) -> Checkpoint:
    parts = (f"{name}.safetensors", f"{name}.json")
    try:
        lines = (folder / f"{name}.sha256").read_text(encoding="utf-8").splitlines()
        sums = {part: digest for digest, part in (line.split() for line in lines)}
        contents = [(folder / part).read_bytes() for part in parts]
        for part, content in zip(parts, contents, strict=True):
            if sums[part] != hashlib.sha256(content).hexdigest():
                raise _Damaged(f"{part} is not what was written")
        document = json.loads(contents[1])
        if document["format_version"] != FORMAT_VERSION:
            raise _Damaged(f"it has format {document['format_version']}, not {FORMAT_VERSION}")
        return Checkpoint(safetensors.torch.load(contents[0]), document["state"])
    except (OSError, ValueError, LookupError, TypeError, SafetensorError) as error:
        raise _Damaged(f"{type(error).__name__}: {error}") from error


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as safetensors wants them: on the CPU, contiguous, no shared memory."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        address = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if address in seen else value
        seen.add(address)
    return plain


def _whole(folder: Path, stage: str | None = None) -> list[str]:
    """Return the names of whole checkpoints, oldest first; they are numbered through a run."""
    found = {name for file, name in _files(folder) if file == f"{name}.sha256"}
    names = sorted(found, key=lambda name: int(name.rpartition("-")[2]))
    return [name for name in names if stage in (None, name.rpartition("-")[0])]


def _files(folder: Path) -> list[tuple[str, str]]:
    """Return (file, name of the checkpoint) of all parts of checkpoints, temporary ones too."""
    paths = folder.iterdir() if folder.is_dir() else ()
    found = (FILE.fullmatch(path.name) for path in paths)
    return [(match[0], match[1]) for match in found if match]
