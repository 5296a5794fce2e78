"""Weights from safetensors files: local ones, or those that timm publishes.

Pickled files (.pt, .pth, .bin) are never opened: loading one can run any code it carries.
"""

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.nn.catalogue import pretrained_cfg
from scs_supcon.nn.encoder import Encoder
from scs_supcon.nn.tiny import TINY

logger = logging.getLogger(__name__)

INSTEAD = "give a local file with --weights FILE.safetensors, or use --from-scratch"


def load_weights(encoder: Encoder, path: str | Path) -> tuple[str, ...]:
    """Load weights under timm's names for the encoder; those of a classifier are left aside.

    Args:
        encoder: Takes the weights.
        path: A safetensors file.

    Returns:
        Names of the tensors that keep their random start: those of a small stem whose shape the
        file cannot fit. They are also named in a log warning.

    Raises:
        UserError: Not a safetensors file, or its tensors are not those of this encoder.
    """
    path = Path(path)
    found = _read(path)
    expected = encoder.body.state_dict()
    replaced = _below(encoder.stem.replaced)
    aside = (*replaced, *_below(_classifiers(encoder)))
    found = {name: tensor for name, tensor in found.items() if not name.startswith(aside)}
    wanted = {name: tensor for name, tensor in expected.items() if not name.startswith(aside)}
    _must_match(encoder, path, found, wanted)
    encoder.body.load_state_dict(found, strict=False)
    fresh = tuple(name for name in expected if name.startswith(replaced))
    if fresh:
        logger.warning(
            "%s: the small stem (%s) starts from random weights: %s",
            encoder.name,
            encoder.stem.text,
            ", ".join(fresh),
        )
    return fresh


def fetch_weights(name: str, offline: bool) -> Path:
    """Return timm's pretrained weights as a local safetensors file, downloaded if need be.

    Downloads go to the usual cache of huggingface_hub and happen only here.

    Args:
        name: A timm model, with or without the tag of its weights.
        offline: Use what an earlier download left, or fail.

    Raises:
        UserError: There are none, or they cannot be had now; the text says what to do.
    """
    source = None if name == TINY else pretrained_cfg(name).hf_hub_id
    if not source:
        raise UserError(f"there are no pretrained safetensors weights for {name!r}: {INSTEAD}")
    try:
        return _from_hub(source, offline=True)
    except Exception as error:  # many kinds of failure, one remedy
        if offline:
            raise UserError(
                f"the pretrained weights of {name!r} were not downloaded before: {INSTEAD}"
            ) from error
    try:
        return _from_hub(source, offline=False)
    except Exception as error:
        raise UserError(
            f"the pretrained weights of {name!r} could not be downloaded: {INSTEAD}"
        ) from error


def _from_hub(source: str, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    repository, _, revision = source.partition("@")
    file = hf_hub_download(
        repository, "model.safetensors", revision=revision or None, local_files_only=offline
    )
    return Path(file)


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"there is no weights file {path}")
    if path.suffix != ".safetensors":
        raise UserError(
            f"{path} is no .safetensors file, and other formats can run code when opened: convert "
            "it where you trust it, with "
            "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'w.safetensors')"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}") from error


def _classifiers(encoder: Encoder) -> tuple[str, ...]:
    """timm names the layers that a pretrained model classifies with."""
    published: Any = getattr(encoder.body, "pretrained_cfg", {})
    names = published.get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def _below(modules: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{module}." for module in modules)


def _must_match(
    encoder: Encoder, path: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]
) -> None:
    # A counter that batch normalisation keeps but does not use: many files leave it out.
    needed = [name for name in wanted if not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in found]
    unknown = [name for name in found if name not in wanted]
    other = [
        f"{name} {tuple(found[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in found and found[name].shape != tensor.shape
    ]
    problems = [
        f"{kind}: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for kind, names in (("missing", missing), ("unknown", unknown), ("other shape", other))
        if names
    ]
    if problems:
        raise UserError(
            f"{path} does not hold the weights of {encoder.name}: {'; '.join(problems)}"
        )
