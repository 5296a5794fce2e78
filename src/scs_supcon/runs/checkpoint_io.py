"""Checkpoint files: tensors as safetensors, all other state as JSON, and the SHA-256 of both.

A checkpoint consists of `pretrain-000007.safetensors`, `.json` and `.sha256`. The checksums are
written last: a checkpoint without them is incomplete and ignored. Every byte is verified before
use. Loading does not run code, because nothing is pickled.
"""

import hashlib
import json
import math
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
from scs_supcon.io.records import memory_bytes, parse_json_object, read_bytes, read_text
from scs_supcon.io.typed import validate
from scs_supcon.io.values import ValueTree

FORMAT_VERSION = 1
CHECKPOINTS_PER_STAGE = 2
FILE = re.compile(r"\.?([a-z0-9_]+-\d{6,})\.(?:safetensors|json|sha256)(?:\.[0-9a-f]+\.tmp)?")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training stage.

    Attributes:
        tensors: Weights and optimizer state.
        state: Everything else, as JSON.
    """

    tensors: dict[str, Tensor]
    state: ValueTree


class _DamagedCheckpoint(Exception):
    """The content of a checkpoint does not match its checksums or format."""


def write_checkpoint(folder: Path, stage: str, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, then remove all but the newest two of its stage."""
    names = _complete_checkpoints(folder)
    number = int(names[-1].rpartition("-")[2]) + 1 if names else 1
    name = f"{stage}-{number:06d}"
    document = {"format_version": FORMAT_VERSION, "state": checkpoint.state}
    contents = {
        f"{name}.safetensors": safetensors.torch.save(storable(checkpoint.tensors)),
        f"{name}.json": json.dumps(document).encode(),
    }
    for file, content in contents.items():
        write_bytes(folder / file, content)
    sums = (f"{hashlib.sha256(data).hexdigest()}  {file}\n" for file, data in contents.items())
    write_text(folder / f"{name}.sha256", "".join(sums))
    _remove_old(folder, stage)


def read_checkpoint(folder: Path, stage: str) -> Checkpoint | None:
    """Return the newest intact checkpoint of a stage, or None if the stage has no checkpoint.

    Raises:
        UserError: All checkpoints of the stage are damaged.
    """
    names = _complete_checkpoints(folder, stage)
    _, checkpoint = _newest_intact(folder, names)
    if names and checkpoint is None:
        all_names = _complete_checkpoints(folder)
        # Later stages depend on this one, so the user has to delete them too.
        raise _all_damaged_error(folder, all_names[all_names.index(names[0]) :])
    return checkpoint


def read_last(folder: Path) -> tuple[str, Checkpoint] | None:
    """Return the newest intact checkpoint and its stage, or None if there are no checkpoints.

    Newer, damaged checkpoints are removed, so that their stage restarts where the previous stage
    ended.

    Raises:
        UserError: All checkpoints are damaged.
    """
    names = _complete_checkpoints(folder)
    name, checkpoint = _newest_intact(folder, names)
    if checkpoint is None:
        if names:
            raise _all_damaged_error(folder, names)
        return None
    for damaged in names[names.index(name) + 1 :]:
        _remove(folder, damaged)
    return name.rpartition("-")[0], checkpoint


def last_stage(folder: Path) -> str | None:
    """Return the stage of the newest checkpoint, or None if there are no checkpoints."""
    names = _complete_checkpoints(folder)
    return names[-1].rpartition("-")[0] if names else None


def remove_incomplete(folder: Path) -> None:
    """Remove what a killed process left: temporary, incomplete and superseded files."""
    for stage in {name.rpartition("-")[0] for name in _complete_checkpoints(folder)}:
        _remove_old(folder, stage)
    complete = set(_complete_checkpoints(folder))
    for file, name in _files(folder):
        if file.startswith(".") or name not in complete:
            (folder / file).unlink(missing_ok=True)


def _newest_intact(folder: Path, names: list[str]) -> tuple[str, Checkpoint | None]:
    for name in reversed(names):
        try:
            return name, _read(folder, name)
        except _DamagedCheckpoint as damage:
            message = (
                f"checkpoint {name} in {folder} is damaged ({damage}); trying the previous one"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)
    return "", None


def _all_damaged_error(folder: Path, names: list[str]) -> UserError:
    files = ", ".join(f"{name}.*" for name in names)
    return UserError(
        f"all checkpoints of stage {names[0].rpartition('-')[0]} in {folder} are damaged: restore "
        f"one from a backup, or delete {files} there to start that stage again"
    )


def _remove_old(folder: Path, stage: str) -> None:
    for old in _complete_checkpoints(folder, stage)[:-CHECKPOINTS_PER_STAGE]:
        _remove(folder, old)


def _remove(folder: Path, name: str) -> None:
    # The checksums are removed first, so that a partly removed checkpoint is not a damaged one.
    for suffix in ("sha256", "json", "safetensors"):
        (folder / f"{name}.{suffix}").unlink(missing_ok=True)


def _read(folder: Path, name: str) -> Checkpoint:
    files = (f"{name}.safetensors", f"{name}.json")
    try:
        lines = read_text(folder / f"{name}.sha256", limit=2**16).splitlines()
        sums = {file: digest for digest, file in (line.split() for line in lines)}
        contents = [read_bytes(folder / file, memory_bytes()) for file in files]
        for file, content in zip(files, contents, strict=True):
            if sums[file] != hashlib.sha256(content).hexdigest():
                raise _DamagedCheckpoint(f"{file} does not match its checksum")
        document = parse_json_object(contents[1], files[1])
        if document["format_version"] != FORMAT_VERSION:
            version = document["format_version"]
            raise _DamagedCheckpoint(f"it has format version {version}, expected {FORMAT_VERSION}")
        state = validate(dict[str, Any], document["state"], files[1])
        return Checkpoint(safetensors.torch.load(contents[0]), state)
    except (ValueError, LookupError, TypeError, SafetensorError) as error:  # also a RecordError
        raise _DamagedCheckpoint(f"{type(error).__name__}: {error}") from error


def storable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as safetensors requires: on the CPU, contiguous, without shared memory."""
    storable: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        address = value.untyped_storage().data_ptr()
        storable[name] = value.clone() if address in addresses else value
        addresses.add(address)
    return storable


def _complete_checkpoints(folder: Path, stage: str | None = None) -> list[str]:
    """Return the names of complete checkpoints, oldest first; numbers increase over all stages.

    Earlier versions gave the folds (fold1, fold2, …) of a run and the stage after them the same
    number. The times of files do not count: the clock may have been set back.
    """

    def order(name: str) -> tuple[int, float]:
        stage, _, number = name.rpartition("-")
        fold = re.search(r"\d+$", stage)
        return int(number), int(fold[0]) if fold else math.inf

    names = sorted({name for file, name in _files(folder) if file == f"{name}.sha256"}, key=order)
    return [name for name in names if stage in (None, name.rpartition("-")[0])]


def _files(folder: Path) -> list[tuple[str, str]]:
    """Return (file, checkpoint name) for all files of checkpoints, including temporary ones."""
    paths = folder.iterdir() if folder.is_dir() else ()
    matches = (FILE.fullmatch(path.name) for path in paths)
    return [(match[0], match[1]) for match in matches if match]
