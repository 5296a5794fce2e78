"""The first phase of --unfreeze: train the projection head before the encoder changes.

A random head would send random gradients into a pretrained encoder and spoil its features. The head
is therefore trained on cached features first, as with a frozen encoder, and the whole network from
there (LP-FT, Kumar et al. 2022).
"""

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.transforms import seeded
from scs_supcon.device import Compute
from scs_supcon.methods import Method
from scs_supcon.nn.build import split_frozen
from scs_supcon.nn.network import Network
from scs_supcon.progress import Display
from scs_supcon.recipe import Recipe
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.estimate import describe_stage_1
from scs_supcon.training.features import encode_images
from scs_supcon.training.pretrain import (
    make_method,
    pretrain,
    set_up_method,
    training_set_from_features,
)


def head_phase(recipe: Recipe) -> Recipe:
    """Return the recipe of the first phase: the same rates and batches with a frozen encoder."""
    settings = recipe.pretrain
    epochs = settings.head_epochs
    first = {
        "epochs": epochs,
        "head_epochs": 0,
        "warmup_epochs": min(settings.warmup_epochs, epochs / 10),
        "cutmix": 0.0,  # there are no images to cut
        "ema": 0.0,
        "initial_share": 0.0,
        "patience": 0,
    }
    return recipe.model_copy(
        update={
            "encoder": recipe.encoder.model_copy(update={"frozen": True}),
            "pretrain": settings.model_copy(update=first),
            "fusion": recipe.fusion.model_copy(update={"folds": 0}),  # only after the last phase
        }
    )


class HeadPhase:
    """Trains head and method on the cached features of the encoder's initial weights.

    Args:
        network: the whole network; its head is trained, its encoder is not changed.
        images: the dataset.
        train: the training images.
        recipe: of the run.
        fabric: where to compute.
        compute: workers and cache.
        display: shows progress.
    """

    def __init__(
        self,
        network: Network,
        images: ImageDataset,
        train: NDArray[np.int64],
        recipe: Recipe,
        fabric: Fabric,
        compute: Compute,
        display: Display,
    ) -> None:
        self.recipe, self.fabric, self.display = head_phase(recipe), fabric, display
        self.method = make_method(self.recipe, fabric.world_size)
        encoder, self.network = split_frozen(network, self.method.uses_taps)
        views, cache = recipe.encoder.frozen_views, compute.cache
        features = encode_images(
            encoder, images, recipe, fabric, compute, display, train, "train", views, cache
        )
        self.training_set = training_set_from_features(
            features, images, train, self.recipe, self.method.views
        )
        with seeded(recipe.seed, 2):
            labels, classes = images.labels[train], len(images.classes)
            set_up_method(self.method, self.network, labels, classes, self.recipe)

    def describe(self) -> str:
        """Return the estimated duration and memory."""
        network, method, device = self.network, self.method, self.fabric.device
        return describe_stage_1(
            network, method, self.training_set, self.recipe, device, "first "
        ).text

    def train(self, run: RunDir, method: Method) -> None:
        """Train, or resume; then give `method`, which trains the whole network, its state."""
        pretrain(
            self.fabric,
            run,
            self.network,
            self.method,
            self.training_set,
            self.recipe,
            self.display,
            name="head",
            title="stage 1, head",
        )
        take_over(self.method, method)


def take_over(before: Method, method: Method) -> None:
    """Copy the parameters and buffers that two set-ups of a method have in common.

    A momentum encoder, for instance, has an encoder in the second set-up only.
    """
    own = method.state_dict()
    common = {
        name: value
        for name, value in before.state_dict().items()
        if name in own and own[name].shape == value.shape
    }
    method.load_state_dict(common, strict=False)
