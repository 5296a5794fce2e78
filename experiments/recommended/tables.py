"""Write the tables of docs/recommended.md and README.md from the records of the study.

    python experiments/recommended/tables.py            rewrite the tables of the pages
    python experiments/recommended/tables.py --check    exit with 1 if a page would change

A table stands between two comments: `<!-- table: KIND RECORD -->` and
`<!-- end of table -->`. RECORD is a folder in results/. The kinds are:

- accuracy: results.csv of `scs compare`. Every method is compared with the control (the first row)
  on the same seeds and folds: difference, interval and p of a t-test corrected for overlapping
  training sets (Nadeau and Bengio), p corrected by Holm over the methods of a column.
- means: the means over the folds in one line per column, of several records joined by "+", for the
  methods that all of them have.
- pooled: pooled.csv of pooled.py: accuracies over the test images of all folds, their difference
  from the control with a 95% interval paired over the images, and the images that only one of the
  two classifies correctly, with McNemar's test, p corrected by Holm.
- measures: measures.csv, one line per run; means over the runs of a group, with the range.
"""

import argparse
import csv
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest, norm, rankdata

from scs_supcon.benchmark.statistics import corrected_t, holm

FOLDER = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "recommended.md", ROOT / "README.md")
BLOCK = re.compile(r"(<!-- table: (\w+) (\S+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
MINUS = "−"

Key = tuple[str, str]  # seed and fold
Scores = dict[str, dict[Key, float]]  # by method


PROBE = "linear probe"


def read_scores(folder: Path) -> dict[str, Scores]:
    """Return the accuracies in per cent, by column, method, and seed with fold.

    Every run also measures the tuned linear probe and kNN on the features of its encoder. Those of
    the control are used if the encoder is frozen and the probe is not a row of its own.
    """
    columns: dict[str, Scores] = {}
    settings = _settings(folder)
    frozen = all(column.get("frozen") for column in settings["columns"])
    baselines = {PROBE: "linear_probe_of_encoder", "kNN on the features": "knn_on_encoder"}
    rows = [row for row in _read_csv(folder / "results.csv") if row["status"] == "done"]
    for row in rows:
        scores = columns.setdefault(row["column"], {})
        scores.setdefault(row["method"], {})[_key(row)] = 100 * float(row["accuracy"])
    own_rows = {row["method"] for row in rows}
    for row in rows:
        if frozen and row["method"] == _control(settings):
            for name in baselines.keys() - own_rows:
                if measured := row.get(baselines[name]):
                    runs = columns[row["column"]].setdefault(name, {})
                    runs[_key(row)] = 100 * float(measured)
    return columns


def _key(row: Mapping[str, str]) -> Key:
    return row["seed"], row["fold"]


def _control(settings: Mapping[str, Any]) -> str:
    return str(settings.get("control") or settings["methods"][0]["name"])


def accuracy_table(folder: Path) -> str:
    """Return one table per column, the methods by mean, each against the control."""
    settings = _settings(folder)
    control = _control(settings)
    overlap = 1 / (settings["folds"] - 1) if "folds" in settings else 0.0
    expected = settings.get("folds", 1) * settings.get("seeds", 1)
    columns = read_scores(folder)
    parts = []
    for name, scores in columns.items():
        title = f"**{name}**\n\n" if len(columns) > 1 else ""
        parts.append(title + _column_table(scores, control, overlap, expected))
    return "\n".join(parts)


def _column_table(scores: Scores, control: str, overlap: float, expected: int) -> str:
    others = {name: runs for name, runs in scores.items() if name != control and runs}
    tests = {}
    for name, runs in others.items():
        keys = sorted(set(scores[control]) & set(runs))
        if len(keys) > 1:
            pair = [scores[control][key] for key in keys], [runs[key] for key in keys]
            tests[name] = corrected_t(*pair, test_per_train=overlap, names=(control, name))
    adjusted = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    ranks = _mean_ranks(scores, control)
    lines = [
        f"| method | test accuracy, % | mean rank | {control} minus it | p (Holm) |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(scores, key=lambda name: -_mean(scores[name].values())):
        if not scores[name]:
            continue
        cells = [_named(name, control), _spread(list(scores[name].values()), expected)]
        cells.append(f"{ranks[name]:.1f}" if name in ranks else "")
        test = tests.get(name)
        cells += [_difference(test.mean, test.low, test.high)] if test else [""]
        cells.append(_p(adjusted[name]) if test else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean_ranks(scores: Scores, control: str) -> dict[str, float]:
    """Return the mean ranks over the runs of the control, of methods that have them all."""
    keys = sorted(scores[control])
    complete = {name: runs for name, runs in scores.items() if runs.keys() >= set(keys)}
    table = np.array([[runs[key] for key in keys] for runs in complete.values()])
    ranks = rankdata(-table, axis=0).mean(1)
    return dict(zip(complete, ranks.tolist(), strict=True))


def means_table(folder: Path) -> str:
    """Return the mean accuracies of the methods that all columns of some records have.

    `folder` ends with the names of the records, such as results/frozen+few_labels.
    """
    records = [folder.with_name(name) for name in folder.name.split("+")]
    control = _control(_settings(records[0]))
    columns = {
        name: {method: _mean(runs.values()) for method, runs in scores.items() if runs}
        for record in records
        for name, scores in read_scores(record).items()
    }
    means = list(columns.values())
    names = [name for name in means[0] if all(name in others for others in means)]
    names.sort(key=lambda name: -means[0][name])
    lines = [f"| set | {' | '.join(_named(name, control) for name in names)} |"]
    lines.append("|---" * (len(names) + 1) + "|")
    for title, column in columns.items():
        numbers = " | ".join(f"{column[name]:.1f}" for name in names)
        lines.append(f"| {title} | {numbers} |")
    return "\n".join(lines) + "\n"


def pooled_table(folder: Path) -> str:
    """Return what differs over all test images: accuracies, images that one method gets right."""
    control = _settings(folder)["control"]
    columns: dict[str, list[dict[str, str]]] = {}
    for row in _read_csv(folder / "pooled.csv"):
        if row["method"] != control:
            columns.setdefault(row["column"], []).append(row)
    parts = []
    for name, rows in columns.items():
        title = f"**{name}**\n\n" if len(columns) > 1 else ""
        parts.append(title + _pooled_column(rows, control))
    return "\n".join(parts)


def _pooled_column(rows: Sequence[Mapping[str, str]], control: str) -> str:
    counts = [(int(row["only_control"]), int(row["only_method"])) for row in rows]
    tests = [
        binomtest(ours, ours + theirs).pvalue if ours + theirs else 1.0 for ours, theirs in counts
    ]
    lines = [
        f"| method | images | accuracy, % | {control} minus it | right with {control} only "
        "| right with it only | p (Holm) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, (ours, theirs), p in zip(rows, counts, holm(tests), strict=True):
        images = int(row["images"])
        cells = [row["method"], row["images"], f"{100 * int(row['correct']) / images:.1f}"]
        cells += [_difference(*paired_difference(images, ours, theirs))]
        cells += [row["only_control"], row["only_method"], _p(p)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def paired_difference(images: int, ours: int, theirs: int) -> tuple[float, float, float]:
    """Return the difference of two accuracies on the same images and its 95% interval, in points.

    Args:
        images: number of test images, n.
        ours: images that only the first method classifies correctly, a.
        theirs: images that only the second one does, b. The difference is d = (a − b)/n, its
            standard error √(a + b − (a − b)²/n)/n.
    """
    difference = (ours - theirs) / images
    error = np.sqrt(ours + theirs - (ours - theirs) ** 2 / images) / images
    margin = float(norm.ppf(0.975) * error)
    return 100 * difference, 100 * (difference - margin), 100 * (difference + margin)


def measures_table(folder: Path) -> str:
    """Return the means over runs of each measure, with the range if there are several runs.

    The columns of measures.csv up to "run" name the group; the others are numbers.
    """
    rows = _read_csv(folder / "measures.csv")
    header = list(rows[0])
    position = header.index("run")
    names, measures = header[:position], header[position + 1 :]
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    lines = [f"| {' | '.join([*names, 'runs', *measures])} |"]
    lines.append("|" + "---|" * (len(names) + 1 + len(measures)))
    for group, runs in groups.items():
        cells = [*group, str(len(runs))]
        for measure in measures:
            values = [float(run[measure]) for run in runs if run[measure]]
            cells.append(_range(values))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


KINDS: dict[str, Callable[[Path], str]] = {
    "accuracy": accuracy_table,
    "means": means_table,
    "pooled": pooled_table,
    "measures": measures_table,
}


def rewrite(text: str, folder: Path = FOLDER) -> str:
    """Return the page with all its tables written from the records."""

    def replace(match: re.Match[str]) -> str:
        start, kind, record, _, end = match.groups()
        return f"{start}\n{KINDS[kind](folder / record)}\n{end}"

    return BLOCK.sub(replace, text)


def _settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "comparison.toml").read_text(encoding="utf-8"))


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _named(name: str, control: str) -> str:
    return f"**{name}**" if name == control else name


def _mean(values: object) -> float:
    numbers = list(values)  # type: ignore[call-overload]
    return float(np.mean(numbers)) if numbers else -np.inf


def _spread(values: Sequence[float], expected: int) -> str:
    missing = "" if len(values) == expected else f" ({len(values)} of {expected})"
    deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{deviation}{missing}"


def _difference(mean: float, low: float, high: float) -> str:
    return f"{_signed(mean)} ({_signed(low)} to {_signed(high)})"


def _signed(value: float) -> str:
    text = f"{value:+.1f}".replace("-", MINUS)
    return text if float(f"{value:.1f}") else "0.0"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = _short(float(np.mean(values)))
    if len(values) == 1:
        return mean
    return f"{mean} ({_short(min(values))} to {_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:.3f}".replace("-", MINUS)


def main() -> None:
    """Rewrite or check the pages."""
    parser = argparse.ArgumentParser(description="Write the tables of the study into the pages.")
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = rewrite(before)
        if not check:
            page.write_text(after, encoding="utf-8")
        elif before != after:
            sys.exit(f"{page.name} differs from the records: run tables.py without --check")


if __name__ == "__main__":
    main()
