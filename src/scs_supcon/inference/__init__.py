"""Trained models: load them, and classify, embed and compare images.

The names are imported on first use: `types` and `writing` do not need torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scs_supcon.inference.decision import Decision, DecisionRule
    from scs_supcon.inference.loading import load
    from scs_supcon.inference.model import Model
    from scs_supcon.inference.package import ModelInfo, ModelMetrics
    from scs_supcon.inference.types import (
        Embeddings,
        Failure,
        Neighbour,
        Prediction,
        Predictions,
    )

_MODULES = {
    "Decision": "decision",
    "DecisionRule": "decision",
    "Model": "model",
    "load": "loading",
    "ModelInfo": "package",
    "ModelMetrics": "package",
    "Embeddings": "types",
    "Failure": "types",
    "Neighbour": "types",
    "Prediction": "types",
    "Predictions": "types",
}

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


def __getattr__(name: str) -> Any:
    """Return a public name, whose module is imported on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'scs_supcon.inference' has no attribute {name!r}")
    return getattr(import_module(f"scs_supcon.inference.{_MODULES[name]}"), name)
