"""The metrics that methods can be compared by."""

from collections.abc import Callable
from dataclasses import dataclass

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.evaluation.record import Evaluation


@dataclass(frozen=True)
class Metric:
    """A number of every run.

    Attributes:
        name: as given to --metric.
        title: for tables; shares are in per cent.
        value: returns the number of an evaluation, a share from 0 to 1 or, for the NLL, nats.
        lower_is_better: whether lower values are better.
        scale: 100 for shares.
    """

    name: str
    title: str
    value: Callable[[Evaluation], float | None]
    lower_is_better: bool = False
    scale: float = 100.0

    @property
    def sign(self) -> float:
        """1, or −1 if lower values are better."""
        return -1.0 if self.lower_is_better else 1.0

    def scaled(self, evaluation: Evaluation) -> float | None:
        """Return the number as it is shown."""
        value = self.value(evaluation)
        return None if value is None else self.scale * value


ACCURACY = Metric("accuracy", "accuracy in per cent", lambda e: e.accuracy)
METRICS = (
    ACCURACY,
    Metric("macro_f1", "macro-F1 in per cent", lambda e: e.scores.macro_f1.value),
    Metric(
        "balanced_accuracy",
        "balanced accuracy in per cent",
        lambda e: e.scores.balanced_accuracy.value,
    ),
    Metric("map_at_r", "MAP@R in per cent", lambda e: e.retrieval.map_at_r),
    Metric("precision_at_1", "precision at 1 in per cent", lambda e: e.retrieval.precision_at_1),
    Metric("pair_auc", "AUC of the pairs in per cent", lambda e: e.pairs.auc),
    Metric(
        "ece",
        "expected calibration error in per cent",
        lambda e: e.calibration.after.ece,
        lower_is_better=True,
    ),
    Metric(
        "nll",
        "negative log-likelihood",
        lambda e: e.calibration.nll,
        lower_is_better=True,
        scale=1.0,
    ),
)


def find_metric(name: str) -> Metric:
    """Return a metric by its name."""
    by_name = {metric.name: metric for metric in METRICS}
    if name not in by_name:
        raise UserError(
            f"unknown metric {name!r}{did_you_mean(name, by_name) or '.'} "
            f"Available: {', '.join(by_name)}"
        )
    return by_name[name]
