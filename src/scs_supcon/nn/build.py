"""Build the network that a recipe describes, for training, cost estimates and saved models."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import Encoder, TappedEncoder, build_encoder, for_cache
from scs_supcon.nn.head import Projection, ProjectionHeads
from scs_supcon.nn.network import Network
from scs_supcon.plugins import is_plugin
from scs_supcon.recipe.schema import Recipe

# From this size on, convolutions of timm's encoders are faster with the channels last; for smaller
# images it makes no difference.
CHANNELS_LAST_SIDE = 65

INITIALISERS = (
    *(nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_, nn.init.kaiming_uniform_),
    *(nn.init.kaiming_normal_, nn.init.xavier_uniform_, nn.init.xavier_normal_),
    *(Tensor.normal_, Tensor.uniform_),
)


def build_network(recipe: Recipe, feature_dim: int | None = None) -> Network:
    """Return a network with random weights.

    Args:
        recipe: settings of the encoder and the projection head.
        feature_dim: number of columns, if the data consists of feature vectors instead of images;
            the encoder is then the identity.
    """
    encoder: nn.Module = nn.Identity()
    if feature_dim is None:
        image_encoder = build_encoder(
            recipe.encoder.name,
            small_stem=recipe.encoder.small_stem,
            in_size=recipe.data.image_size,
        )
        encoder, feature_dim = image_encoder, image_encoder.num_features
        if recipe.data.image_size >= CHANNELS_LAST_SIDE:
            encoder = encoder.to(memory_format=torch.channels_last)
    head = recipe.head
    heads = [
        Projection(feature_dim, head.dim, head.hidden, head.centre, fitted_dim=head.fitted_dim)
        for _ in range(head.heads)
    ]
    projection = heads[0] if len(heads) == 1 else ProjectionHeads(heads)
    micro_batch = 0 if recipe.encoder.frozen else recipe.pretrain.micro_batch
    return Network(encoder, projection, micro_batch, recipe.encoder.fixed_norm)


def network_shapes(recipe: Recipe) -> dict[str, dict[str, torch.Size]]:
    """Return the shapes of the tensors of a network, by part, without allocating them.

    Returns:
        {"encoder": {name: shape}, "head": {name: shape}}; empty if the encoder is the user's own
        or cannot be built without allocating it.
    """
    if is_plugin(recipe.encoder.name):
        return {}  # the user's code may read files
    try:
        with torch.device("meta"), _WithoutInitialisation():
            network = build_network(recipe)
    except (RuntimeError, UserError) as error:
        if "meta tensor" not in str(error):
            raise
        return {}  # a few of timm's models compute with values while they are built
    parts = {"encoder": network.encoder, "head": network.projection}
    return {
        part: {name: tensor.shape for name, tensor in module.state_dict().items()}
        for part, module in parts.items()
    }


class _WithoutInitialisation(TorchFunctionMode):
    """Skips random initial values: tensors without memory have none.

    For such tensors, torch would import its compiler to draw them, which takes a second.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        options = options or {}
        if function in INITIALISERS:
            return arguments[0] if arguments else options["tensor"]
        return function(*arguments, **options)


def split_frozen(network: Network, uses_taps: bool) -> tuple[Encoder | TappedEncoder, Network]:
    """Return the frozen part of a network, whose output is cached, and the part to train.

    The part to train has the network's projection head and expects the cached output.

    Args:
        network: the whole network.
        uses_taps: whether the method needs intermediate features of the encoder.
    """
    cached, replacement = for_cache(cast("Encoder", network.encoder), uses_taps)
    return cached, Network(replacement, network.projection)
