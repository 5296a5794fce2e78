"""Which differences between methods are more than chance: plain functions, numbers and a sentence.

Many methods over many columns (dataset + encoder):
    `friedman` asks whether any method stands out, `nemenyi` which pairs do, `bonferroni_dunn`
    which methods differ from one control, `wilcoxon_holm` the same pair by pair.
Two methods over the same folds, seeds or columns:
    `paired_t`, `corrected_t` (when training sets overlap, as folds do), `wilcoxon`; how large the
    difference is: `cohens_dz`, `rank_biserial`.
Two methods on the same images:
    `mcnemar` on their predictions, `bootstrap` for an interval around any number.

Every result is a frozen dataclass with its numbers, a `sentence` in plain words, and `warnings`
where the design cannot show what is asked of it. Scores are `{method: one number per column}`,
higher is better.
"""

from scs_supcon.benchmark.statistics.effects import (
    Effect,
    Interval,
    bootstrap,
    cohens_dz,
    rank_biserial,
)
from scs_supcon.benchmark.statistics.predictions import McNemar, mcnemar
from scs_supcon.benchmark.statistics.ranks import (
    BonferroniDunn,
    Friedman,
    Nemenyi,
    RankGap,
    bonferroni_dunn,
    cliques,
    critical_difference,
    friedman,
    nemenyi,
)
from scs_supcon.benchmark.statistics.scores import average_ranks, complete_rows
from scs_supcon.benchmark.statistics.signed_ranks import (
    AdjustedPair,
    Wilcoxon,
    WilcoxonHolm,
    holm,
    wilcoxon,
    wilcoxon_holm,
)
from scs_supcon.benchmark.statistics.t_tests import TTest, corrected_t, paired_t

__all__ = [
    "AdjustedPair",
    "BonferroniDunn",
    "Effect",
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
    "cliques",
    "cohens_dz",
    "complete_rows",
    "corrected_t",
    "critical_difference",
    "friedman",
    "holm",
    "mcnemar",
    "nemenyi",
    "paired_t",
    "rank_biserial",
    "wilcoxon",
    "wilcoxon_holm",
]
