"""Two methods on the same images: McNemar's test on stored predictions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from scs_supcon.benchmark.statistics.wording import p_text, verdict
from scs_supcon.errors import UserError

# below this many disagreements the χ² approximation is too rough
EXACT_BELOW = 25


@dataclass(frozen=True)
class McNemar:
    """Who is right where the other is wrong?

    Attributes:
        only_first: Images only the first method got right; likewise `only_second`.
        exact: Whether p is the binomial one; otherwise `chi2` with continuity correction gives it.
        chi2: None where p is exact.
    """

    first: str
    second: str
    both: int
    only_first: int
    only_second: int
    neither: int
    chi2: float | None
    p: float
    exact: bool
    warnings: tuple[str, ...]
    sentence: str


def mcnemar(
    truth: npt.ArrayLike,
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    names: tuple[str, str],
    alpha: float = 0.05,
) -> McNemar:
    """Test whether two classifiers err equally often on the same images.

    It judges these two trained models on this test set; it says nothing about training again with
    another seed. Only images that one of them gets right and the other wrong count.

    Args:
        truth: The right class of every image.
        first: The class one method predicted for each.
        second: The class the other method predicted for each.
        names: What the two methods are called in the sentence.
        alpha: Level the sentence and the warning speak of.
    """
    labels, guess, other = np.asarray(truth), np.asarray(first), np.asarray(second)
    if not labels.shape == guess.shape == other.shape or labels.ndim != 1:
        shapes = f"{labels.shape}, {guess.shape} and {other.shape}"
        raise UserError(f"truth and both predictions need one entry per image, not {shapes}")
    right, right_other = guess == labels, other == labels
    gained, lost = int(np.sum(right & ~right_other)), int(np.sum(~right & right_other))
    disagree = gained + lost
    exact = disagree < EXACT_BELOW
    chi2 = None if exact else max(0, abs(gained - lost) - 1) ** 2 / disagree
    p = _binomial_p(gained, disagree) if chi2 is None else float(stats.chi2.sf(chi2, 1))
    floor = min(1.0, 2.0 ** (1 - disagree))
    warnings: tuple[str, ...] = ()
    if floor >= alpha:
        warnings = (
            f"The methods disagree about {disagree} images, which cannot give p below"
            f" {floor:.4g}: a larger test set is needed.",
        )
    return McNemar(
        *names,
        both=int(np.sum(right & right_other)),
        only_first=gained,
        only_second=lost,
        neither=int(np.sum(~right & ~right_other)),
        chi2=chi2,
        p=p,
        exact=exact,
        warnings=warnings,
        sentence=f"Of {len(labels)} images only {names[0]} got {gained} right and only"
        f" {names[1]} {lost} ({'exact ' if exact else ''}{p_text(p)}): {verdict(p, alpha)}.",
    )


def _binomial_p(gained: int, disagree: int) -> float:
    """Return the two-sided chance of so uneven a split of fair coin tosses."""
    if disagree == 0:
        return 1.0
    return float(stats.binomtest(gained, disagree).pvalue)
