"""The protocol of the paper as a recipe: `--recipe paper`.

Values that the paper states are literal (its hyper-parameter table and section on training). What
it leaves open is chosen here and listed in docs/paper_choices.md: the rate of the dropout, the
encoder of a dataset that is not in its tables, and the rows of the table for other datasets.
"""

from typing import NamedTuple

from scs_supcon.recipe.toml import Values, merge, section

NAME = "paper"
METHOD = "scs_supcon"
SMALL_IMAGE = 64  # short side up to which other datasets are treated as CIFAR
DROPOUT = 0.5  # the paper states no rate


class _Rates(NamedTuple):
    """A row of the hyper-parameter table."""

    stage_1_lr: float
    stage_2_lr: float
    stage_1_batch: int
    stage_2_batch: int


SMALL = _Rates(0.5, 3.0, 1024, 512)
LARGE = _Rates(0.1, 0.1, 96, 48)
RATES = {
    "cifar10": SMALL,
    "cifar100": SMALL,
    "tiny_imagenet": SMALL,
    "cub200": LARGE,
    "stanford_dogs": LARGE,
    "voc2005": LARGE,
}
ENCODERS = {  # of the main table; Tiny-ImageNet is in the ResNet-18 table only
    "cifar10": "resnet50",
    "cifar100": "resnet50",
    "tiny_imagenet": "resnet18",
    "cub200": "tiny_vit_21m_224",
    "stanford_dogs": "tiny_vit_5m_224",
    "voc2005": "tiny_vit_5m_224",
}


def paper_request(source: str, native_size: int, requested: Values) -> Values:
    """Return the requested values, completed with the paper's encoder and method.

    Args:
        source: the data of the run.
        native_size: usual short side of an image in pixels.
        requested: values that the user has set; they are kept.
    """
    small = native_size <= SMALL_IMAGE
    encoder = ENCODERS.get(_dataset(source), "resnet18" if small else "tiny_vit_5m_224")
    defaults: Values = {"encoder": {"name": encoder, "frozen": False}}
    if section(requested, "method").get("name", METHOD) == METHOD:
        defaults["method"] = {"name": METHOD, "preset": "paper"}
    return merge(defaults, requested)


def paper_values(source: str, native_size: int, convolutional: bool) -> Values:
    """Return the settings of the paper.

    Args:
        source: the data of the run; a dataset of the paper has its own row in the table.
        native_size: usual short side of an image in pixels, which chooses a row for other data.
        convolutional: whether the encoder is a convolutional network.
    """
    rates = RATES.get(_dataset(source), SMALL if native_size <= SMALL_IMAGE else LARGE)
    return {
        "data": {"augment": "jitter", "grayscale": 0.0},
        # 192 + 64 columns by default; CS-SupCon with overlap has other widths.
        "head": {"hidden": 0, "heads": 1, "style": "trained", "centre": False},
        "pretrain": {
            "epochs": 1000,
            "batch_size": rates.stage_1_batch,
            "batches": "shuffle",
            "optimizer": "sgd",
            "lr": rates.stage_1_lr,
            "lr_floor": 0.0,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "warmup_epochs": 0.0,
            "clip_norm": 0.0,
        },
        "probe": {
            "classifier": "single",
            "epochs": 100,
            "batch_size": rates.stage_2_batch,
            "plain_lr": rates.stage_2_lr,
            "weight_decays": (1e-4,),
            "momentum": 0.9,
            "dropout": DROPOUT if convolutional else 0.0,
        },
        "fusion": {"whitened": False},
    }


def _dataset(source: str) -> str:
    """Return the name of a dataset, without its folder."""
    return source.partition("=")[0]
