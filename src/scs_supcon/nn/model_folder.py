"""Model folders of timm and Hugging Face: config.json and model.safetensors.

timm reads such a folder with `timm.create_model("local-dir:FOLDER", pretrained=True)`, and
transformers with `AutoModel.from_pretrained(FOLDER)`. Only files are read and written; there is no
network, and pickled weights are never opened.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_json
from scs_supcon.io.exchange import updating_folder
from scs_supcon.io.records import RecordError, read_json_object
from scs_supcon.nn.encoder import Encoder
from scs_supcon.nn.timm_models import TINY, Stem
from scs_supcon.plugins import is_plugin
from scs_supcon.recipe.schema import DataRecipe

CONFIG, WEIGHTS = "config.json", "model.safetensors"
# A file must not name code or an address to load.
_ARCHITECTURE = re.compile(r"^[A-Za-z0-9_.-]+$")


@dataclass(frozen=True)
class ModelFolder:
    """The encoder of a folder: timm's name of the model, and the file of its weights."""

    architecture: str
    weights: Path


def read_model_folder(folder: Path) -> ModelFolder:
    """Return the model and the weights of a folder that timm or transformers has written.

    Raises:
        UserError: a file is missing, or the model is not one of timm's.
    """
    try:
        config = read_json_object(folder / CONFIG, links=True)
    except RecordError as error:
        raise UserError(f"{folder} is not a model folder: {error}") from error
    architecture = config.get("architecture")
    if not isinstance(architecture, str) or not _ARCHITECTURE.match(architecture):
        kind = config.get("model_type") or "unknown"
        raise UserError(
            f"{folder / CONFIG} has no timm architecture (model type {kind!r}): use it as an "
            "encoder of your own with --encoder nets.py:build; see examples/own_code.py"
        )
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder} has no {WEIGHTS}, the only format of weights that is read")
    return ModelFolder(architecture, folder / WEIGHTS)


def weights_and_encoder(
    weights: Path | None, encoder: str | None
) -> tuple[Path | None, str | None]:
    """Return the file of the weights, and the encoder, if `weights` may be a model folder."""
    if weights is None or not weights.is_dir():
        return weights, encoder
    folder = read_model_folder(weights)
    return folder.weights, encoder or folder.architecture


def write_model_folder(encoder: Encoder, data: DataRecipe, folder: Path) -> None:
    """Write the encoder of a model as a folder that timm and transformers can read.

    Args:
        encoder: a model of timm.
        data: the images that it expects.
        folder: is created.

    Raises:
        UserError: timm cannot build this encoder.
    """
    from safetensors.torch import save_file

    if encoder.name == TINY or is_plugin(encoder.name) or encoder.stem != Stem():
        reason = "has other first layers" if encoder.stem.replaced else "is not one of its models"
        raise UserError(f"timm cannot build the encoder {encoder.name}, which {reason}")
    architecture, _, tag = encoder.name.partition(".")
    published = {
        "tag": tag or "scs_supcon",
        "input_size": [3, data.image_size, data.image_size],
        "fixed_input_size": False,
        "interpolation": data.interpolation,
        "crop_pct": data.crop_pct,
        "crop_mode": "center",
        "mean": list(data.mean),
        "std": list(data.std),
        "num_classes": 0,
    }
    config = {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": encoder.num_features,
        "pretrained_cfg": published,
    }
    tensors = {name: tensor.contiguous() for name, tensor in encoder.body.state_dict().items()}
    with updating_folder(folder) as new:
        save_file(tensors, new / WEIGHTS, {"format": "pt"})
        write_json(new / CONFIG, config)
