"""A model's folder: four files, hashed, nothing in them that could run.

`weights.safetensors` holds all tensors, `model.json` all else, `README.md` is for people.
`SHA256SUMS` is written last and checked first: a folder is whole, or it is refused. README is not
among the sums, so that people may add to it.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.inference.facts import FORMAT_VERSION, Facts
from scs_supcon.io.atomic import write_together

WEIGHTS, FACTS, CARD, SUMS = "weights.safetensors", "model.json", "README.md", "SHA256SUMS"


def write_model(folder: Path, facts: Facts, tensors: dict[str, Tensor], card: str) -> None:
    """Write a model's folder; one that holds a model already is replaced."""
    if (folder / CARD).exists() and not (folder / FACTS).exists():
        raise UserError(f"{folder} holds a {CARD} but no model: choose another folder")
    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    contents = {
        WEIGHTS: safetensors.torch.save(plain),
        FACTS: (json.dumps(facts.model_dump(mode="json"), indent=1) + "\n").encode(),
    }
    sums = (
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items()
    )
    seal = {CARD: card.encode(), SUMS: "".join(sums).encode()}
    write_together(folder, contents | seal, SUMS)


def read_model(path: str | Path) -> tuple[Facts, dict[str, Tensor]]:
    """Read and check the folder of a model, or of the run that made it."""
    folder = _find(Path(path))
    sums = _sums(folder)
    facts = _facts(folder / FACTS, _checked(folder / FACTS, sums))
    content = _checked(folder / WEIGHTS, sums)
    try:
        tensors = safetensors.torch.load(content)
    except SafetensorError as error:
        raise UserError(f"{folder / WEIGHTS} is no safetensors file: {error}") from error
    # Copies: what was read lies in one buffer, where tensors may start at odd addresses.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{folder / WEIGHTS}: {name} holds NaN or infinity")
    return facts, tensors


def _find(path: Path) -> Path:
    for folder in (path, path / "model"):
        if (folder / FACTS).is_file():
            return folder
    if not path.exists():
        raise UserError(f"there is no {path}: give the folder of a finished run, or its model")
    if (path / "recipe.toml").is_file():
        raise UserError(f"the run in {path} is not finished: run its training line again")
    raise UserError(f"{path} holds no model: expected {FACTS} in it or in {path / 'model'}")


def _sums(folder: Path) -> dict[str, str]:
    file = folder / SUMS
    if not file.is_file():
        raise UserError(f"{folder} has no {SUMS}, so it was not written to the end: save it again")
    try:
        lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
        return {name: digest for digest, name in lines}
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error


def _checked(file: Path, sums: dict[str, str]) -> bytes:
    """Read a file once, so that what was checked is what is used."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if hashlib.sha256(content).hexdigest() != sums.get(file.name):
        raise UserError(
            f"{file} is not what was saved (its SHA-256 is not the one in {SUMS}): copy the folder "
            "again from where it came"
        )
    return content


def _facts(file: Path, content: bytes) -> Facts:
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is no JSON: {error}") from error
    version = document.get("format_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"{file} has format {version}, this version of scs-supcon reads up to "
            f"{FORMAT_VERSION}: pip install --upgrade scs-supcon"
        )
    try:
        return Facts.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise UserError(f"{file} is no model of scs-supcon: {where}: {first['msg']}") from error
