"""Load encoder weights from safetensors files: local ones, or those that timm publishes.

Pickled files (.pt, .pth, .bin) are never opened: loading them can run arbitrary code.
"""

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import Encoder
from scs_supcon.nn.timm_models import TINY, pretrained_cfg

logger = logging.getLogger(__name__)

FILE = "model.safetensors"
WRAPPER = "timm_model."  # what transformers writes before timm's names
CONNECT_SECONDS = 5.0  # after which there is no network


def load_weights(encoder: Encoder, path: str | Path) -> tuple[str, ...]:
    """Load weights with timm's names into the encoder; those of a classifier are ignored.

    Args:
        encoder: the encoder to load into.
        path: a safetensors file.

    Returns:
        Names of the tensors that keep their random values: those of a small stem, which the file
        does not fit. They are also logged as a warning.

    Raises:
        UserError: the file is not a safetensors file, or its tensors do not fit this encoder.
    """
    path = Path(path)
    initial = encoder.body.state_dict()
    replaced = _prefixes(encoder.stem.replaced)
    ignored = (*replaced, *_prefixes(_classifiers(encoder)))
    stored = {k.removeprefix(WRAPPER): tensor for k, tensor in _read(path).items()}
    loaded = {k: tensor for k, tensor in stored.items() if not k.startswith(ignored)}
    expected = {k: tensor for k, tensor in initial.items() if not k.startswith(ignored)}
    _check_match(encoder, path, loaded, expected)
    for name, tensor in loaded.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{path}: {name} contains NaN or infinity: use intact weights")
    encoder.body.load_state_dict(loaded, strict=False)
    random = tuple(name for name in initial if name.startswith(replaced))
    if random:
        logger.warning(
            "%s: the small stem (%s) starts from random weights: %s",
            encoder.name,
            encoder.stem.text,
            ", ".join(random),
        )
    return random


def fetch_weights(name: str, offline: bool) -> Path:
    """Return timm's pretrained weights as a local safetensors file, downloading it if necessary.

    Downloads go to the cache of huggingface_hub and happen only here.

    Args:
        name: a timm model, with or without the tag of its weights.
        offline: fail instead of downloading.

    Raises:
        UserError: there are no weights, or they cannot be downloaded.
    """
    source = None if name == TINY else pretrained_cfg(name).hf_hub_id
    if not source:
        raise UserError(
            f"there are no pretrained safetensors weights for {name!r}: choose another encoder "
            "(`scs encoders` lists some), give a file with --weights FILE, or train from random "
            "weights with --from-scratch"
        )
    try:
        return _from_hub(source, offline=True)
    except Exception as error:  # huggingface_hub raises errors of many types
        if offline:
            raise _missing_weights(name, source, "have not been downloaded yet") from error
    try:
        _check_connection(_address(source))
        return _from_hub(source, offline=False)
    except Exception as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())[:120]
        detail = f"could not be downloaded ({reason or type(error).__name__})"
        raise _missing_weights(name, source, detail) from error


def _missing_weights(name: str, source: str, problem: str) -> UserError:
    return UserError(
        f"the pretrained weights of {name!r} {problem}. Fetch {FILE} on a computer with a network "
        f"from\n  {_address(source)}\nand give the file with --weights {FILE}"
    )


def _check_connection(address: str) -> None:
    """Raise an error within seconds if there is no network; huggingface_hub tries for a minute."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(address, method="HEAD"), timeout=CONNECT_SECONDS):
            pass
    except HTTPError:
        pass  # the server has answered; huggingface_hub explains what is wrong


def _address(source: str) -> str:
    """Return the address of the weights, such as https://…/model.safetensors."""
    from huggingface_hub import hf_hub_url

    repository, _, revision = source.partition("@")
    return hf_hub_url(repository, FILE, revision=revision or None)


def _from_hub(source: str, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    repository, _, revision = source.partition("@")
    return Path(
        hf_hub_download(repository, FILE, revision=revision or None, local_files_only=offline)
    )


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"there is no weights file {path}")
    if path.suffix != ".safetensors":
        raise UserError(
            f"{path} is not a .safetensors file, and other formats can run code when opened: if "
            "you trust it, convert it with "
            "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'w.safetensors')"
        )
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"cannot read {path} as safetensors: {error}") from error


def _classifiers(encoder: Encoder) -> tuple[str, ...]:
    """Return timm's names of the classification layers of a pretrained model."""
    published: Any = getattr(encoder.body, "pretrained_cfg", {})
    names = published.get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def _prefixes(modules: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{module}." for module in modules)


def _check_match(
    encoder: Encoder, path: Path, loaded: dict[str, Tensor], expected: dict[str, Tensor]
) -> None:
    # Batch normalisation does not use this counter, and many files leave it out.
    needed = [name for name in expected if not name.endswith("num_batches_tracked")]
    missing = [name for name in needed if name not in loaded]
    unknown = [name for name in loaded if name not in expected]
    wrong_shape = [
        f"{name} {tuple(loaded[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in loaded and loaded[name].shape != tensor.shape
    ]
    problems = [
        f"{kind}: {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for kind, names in (
            ("missing", missing),
            ("unknown", unknown),
            ("wrong shape", wrong_shape),
        )
        if names
    ]
    if problems:
        raise UserError(f"{path} does not fit the encoder {encoder.name}: {'; '.join(problems)}")
