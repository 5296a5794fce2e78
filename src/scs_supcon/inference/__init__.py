"""The finished artefact: load it, and ask it about images."""

from scs_supcon.inference.building import Evidence, build_model
from scs_supcon.inference.facts import Readout
from scs_supcon.inference.loading import fill_from, load
from scs_supcon.inference.model import Model
from scs_supcon.inference.readout import Network
from scs_supcon.inference.types import Embeddings, Failure, Neighbour, Prediction, Predictions

__all__ = [
    "Embeddings",
    "Evidence",
    "Failure",
    "Model",
    "Neighbour",
    "Network",
    "Prediction",
    "Predictions",
    "Readout",
    "build_model",
    "fill_from",
    "load",
]
