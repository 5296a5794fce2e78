"""Trained models: load them, and classify, embed and compare images."""

from scs_supcon.inference.decision import Decision, DecisionRule
from scs_supcon.inference.model import Model, load
from scs_supcon.inference.package import ModelInfo, ModelMetrics
from scs_supcon.inference.types import Embeddings, Failure, Neighbour, Prediction, Predictions

__all__ = [
    "Decision",
    "DecisionRule",
    "Embeddings",
    "Failure",
    "Model",
    "ModelInfo",
    "ModelMetrics",
    "Neighbour",
    "Prediction",
    "Predictions",
    "load",
]
