"""The finished artefact: load it, and ask it about pictures."""

from scs_supcon.model.answers import Embeddings, Failure, Neighbour, Prediction, Predictions
from scs_supcon.model.building import Evidence, build_model
from scs_supcon.model.facts import Readout
from scs_supcon.model.loading import fill_from, load
from scs_supcon.model.model import Model
from scs_supcon.model.readout import Network

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
