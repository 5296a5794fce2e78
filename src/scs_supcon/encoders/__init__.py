"""Pictures to features: any timm model by name, or our own small one."""

from scs_supcon.encoders.catalogue import DataConfig, data_config, weights_licence
from scs_supcon.encoders.encoder import Encoder, build_encoder, encoder_key
from scs_supcon.encoders.stems import has_small_stem
from scs_supcon.encoders.tapped import Tapped, for_cache, rows_key
from scs_supcon.encoders.weights import fetch_weights, load_weights

__all__ = [
    "DataConfig",
    "Encoder",
    "Tapped",
    "build_encoder",
    "data_config",
    "encoder_key",
    "fetch_weights",
    "for_cache",
    "has_small_stem",
    "load_weights",
    "rows_key",
    "weights_licence",
]
