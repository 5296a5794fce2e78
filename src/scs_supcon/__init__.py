"""Supervised contrastive learning with a learnable decision boundary."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scs_supcon.benchmark.api import compare
    from scs_supcon.benchmark.compare import ComparisonReport
    from scs_supcon.evaluation.evaluate import evaluate
    from scs_supcon.evaluation.record import Evaluation, UnknownEvaluation
    from scs_supcon.inference import Model, Prediction, load
    from scs_supcon.kernels import Gather
    from scs_supcon.methods import Method
    from scs_supcon.methods.cs_supcon import CSSupCon
    from scs_supcon.methods.cs_supcon_overlap import CSSupConOverlap
    from scs_supcon.methods.scs_supcon import SCSSupCon
    from scs_supcon.methods.shared.loss_method import LossMethod
    from scs_supcon.methods.shared.memory_bank import MemoryBank
    from scs_supcon.methods.shared.pair_scalars import weight_decay_groups
    from scs_supcon.methods.simclr import SimCLR
    from scs_supcon.methods.supcon import SupCon
    from scs_supcon.nn.network import large_batch_step
    from scs_supcon.plugins import allow_code
    from scs_supcon.pml import MetricLearningLoss
    from scs_supcon.recipe import Recipe
    from scs_supcon.sklearn import ContrastiveClassifier
    from scs_supcon.training.result import RunResult
    from scs_supcon.training.train import train
    from scs_supcon.tuning.api import tune
    from scs_supcon.tuning.tune import SearchResult

__version__ = "0.2.0"

_MODULES = {
    "Method": "methods",
    "LossMethod": "methods.shared.loss_method",
    "SCSSupCon": "methods.scs_supcon",
    "SupCon": "methods.supcon",
    "SimCLR": "methods.simclr",
    "CSSupCon": "methods.cs_supcon",
    "CSSupConOverlap": "methods.cs_supcon_overlap",
    "MemoryBank": "methods.shared.memory_bank",
    "Gather": "kernels",
    "large_batch_step": "nn.network",
    "MetricLearningLoss": "pml",
    "ContrastiveClassifier": "sklearn",
    "Evaluation": "evaluation.record",
    "UnknownEvaluation": "evaluation.record",
    "evaluate": "evaluation.evaluate",
    "Model": "inference",
    "Prediction": "inference",
    "load": "inference",
    "Recipe": "recipe",
    "RunResult": "training.result",
    "train": "training.train",
    "compare": "benchmark.api",
    "ComparisonReport": "benchmark.compare",
    "tune": "tuning.api",
    "SearchResult": "tuning.tune",
    "allow_code": "plugins",
    "weight_decay_groups": "methods.shared.pair_scalars",
}

__all__ = [
    "CSSupCon",
    "CSSupConOverlap",
    "ComparisonReport",
    "ContrastiveClassifier",
    "Evaluation",
    "Gather",
    "LossMethod",
    "MemoryBank",
    "Method",
    "MetricLearningLoss",
    "Model",
    "Prediction",
    "Recipe",
    "RunResult",
    "SCSSupCon",
    "SearchResult",
    "SimCLR",
    "SupCon",
    "UnknownEvaluation",
    "allow_code",
    "compare",
    "evaluate",
    "large_batch_step",
    "load",
    "train",
    "tune",
    "weight_decay_groups",
]


def __getattr__(name: str) -> Any:
    """Return a public name, whose module is imported on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'scs_supcon' has no attribute {name!r}")
    try:
        module = import_module(f"scs_supcon.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("scs_supcon"):
            raise
        extra = "train,paper" if _MODULES[name].startswith(("benchmark", "tuning")) else "train"
        raise ImportError(
            f"scs_supcon.{name} needs {error.name}, which is not installed: "
            f"pip install 'scs-supcon[{extra}]'. The losses need only PyTorch and NumPy."
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    """Return the public names, also of modules that are not imported yet."""
    return sorted({*globals(), *__all__})
