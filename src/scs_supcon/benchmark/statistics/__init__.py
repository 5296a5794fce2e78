"""Statistical tests that compare methods: plain functions that return numbers and a sentence.

Many methods over many columns (dataset + encoder):
    `friedman` tests whether any method differs, `nemenyi` which pairs do, `bonferroni_dunn` which
    methods differ from a control, `wilcoxon_holm` the same with pairwise tests.
Two methods over the same folds, seeds or columns:
    `paired_t`, `corrected_t` (for overlapping training sets, as in cross-validation), `wilcoxon`;
    the size of the difference: `cohens_dz`.
Two methods on the same images:
    `mcnemar` on what they classify correctly, `bootstrap` for the interval of a mean.

Every result is a frozen dataclass with its numbers, a `sentence` in plain words, and `warnings`
where the design cannot support a conclusion. Scores are `{method: one number per column}`; higher
is better. Only the corrected t-test and the exact signed-rank test with ties are implemented here;
the other tests use scipy, statsmodels and scikit-posthocs.
"""

from scs_supcon.benchmark.statistics.paired import (
    AdjustedPair,
    Interval,
    McNemar,
    TTest,
    Wilcoxon,
    WilcoxonHolm,
    bootstrap,
    cohens_dz,
    corrected_t,
    holm,
    mcnemar,
    paired_t,
    wilcoxon,
    wilcoxon_holm,
)
from scs_supcon.benchmark.statistics.ranks import (
    BonferroniDunn,
    Friedman,
    Nemenyi,
    RankGap,
    bonferroni_dunn,
    critical_difference,
    friedman,
    nemenyi,
)
from scs_supcon.benchmark.statistics.scores import average_ranks

__all__ = [
    "AdjustedPair",
    "BonferroniDunn",
    "Friedman",
    "Interval",
    "McNemar",
    "Nemenyi",
    "RankGap",
    "TTest",
    "Wilcoxon",
    "WilcoxonHolm",
    "average_ranks",
    "bonferroni_dunn",
    "bootstrap",
    "cohens_dz",
    "corrected_t",
    "critical_difference",
    "friedman",
    "holm",
    "mcnemar",
    "nemenyi",
    "paired_t",
    "wilcoxon",
    "wilcoxon_holm",
]
