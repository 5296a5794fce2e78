"""What the numbers of a run say, in sentences."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scs_supcon.data.dataset import problem_title


def share(value: float, digits: int = 1) -> str:
    """A share in percent."""
    return f"{100 * value:.{digits}f}\u00a0%"  # never broken before the sign


def many(count: int, thing: str) -> str:
    """A count with its noun."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def beside_baselines(score: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """Whether the model is worth its training, said plainly."""
    if not baselines:
        return "Nothing was measured beside it."
    name = max(baselines, key=lambda title: baselines[title])
    best, value = baselines[name], score["value"]
    points = 100 * abs(best - value)
    if points < 0.05:
        return f"The best of the baselines, {name}, does exactly as well."
    if best > value:
        inside = best <= score["high"]
        much = "within what chance can do" if inside else "and more than chance explains"
        advice = "it is level, not better" if inside else f"use the {name} where accuracy is all"
        return (
            f"The best of the baselines, {name}, is {points:.1f} points better, {much}: {advice}."
        )
    if best >= score["low"]:
        return (
            f"It is {points:.1f} points better than the best of the baselines, {name}, which is "
            "within what chance can do: count it as level."
        )
    return (
        f"It is {points:.1f} points better than the best of the baselines, {name}, and more than "
        "chance explains."
    )


def about_pairs(pairs: Mapping[str, Any]) -> str:
    """What the boundary does to pairs."""
    right, wrong, auc = (pairs[k] for k in ("true_positive_rate", "false_positive_rate", "auc"))
    if right is None or wrong is None:
        return "There are too few images to compare pairs of one class and of different classes."
    origin = {
        "boundary": "the boundary that training found",
        "quantile": "the line drawn on validation images, as this method learns none",
    }[pairs["rule"]]
    ranked = "" if auc is None else f" Without any line, {_often(auc)}"
    return (
        f"{share(right)} of the pairs of one class are more alike than {origin} "
        f"({pairs['threshold']:.2f}), and "
        f"{share(wrong, 2 if wrong < 0.01 else 1)} of the pairs of different classes.{ranked}"
    )


def _often(auc: float) -> str:
    return f"a pair of one class is the more alike of two pairs in {share(auc)} of cases."


def about_calibration(calibration: Mapping[str, Any]) -> str:
    """Whether stated probabilities can be believed."""
    before, after = calibration["before"]["ece"], calibration["after"]["ece"]
    moved = "down from" if after < before else "not better than"
    return (
        f"What the model says and how often it is right differ by {100 * after:.1f} points on "
        f"average, {moved} {100 * before:.1f} before its probabilities were scaled "
        f"(temperature {calibration['temperature']:.2f})."
    )


def about_refusals(refused: Mapping[str, Any]) -> str:
    """How often "none of these" is said, rightly and wrongly."""
    words = f"{share(refused['known'])} of these images would be called none of these classes."
    if refused.get("unknown") is not None:
        asked = many(refused["unknown_images"], "image")
        words += f" Of {asked} of other classes it turns away {share(refused['unknown'])}."
    return words


def about_retrieval(retrieval: Mapping[str, float | None]) -> str:
    """Whether neighbours are classmates."""
    first, precision = retrieval["p_at_1"], retrieval["map_at_r"]
    if first is None or precision is None:
        return ""
    return (
        f"The nearest other image is of the same class {share(first)} of the time (P@1); "
        f"MAP@R is {share(precision)}."
    )


def about_shown(splits: Sequence[str]) -> str:
    """Which images a page can show."""
    kinds = {
        "test": "test image",
        "val": "validation image",
        "train": "training image",
    }
    counts = [many(splits.count(key), kind) for key, kind in kinds.items() if key in splits]
    listed = " and ".join([", ".join(counts[:-1]), counts[-1]] if counts[1:] else counts)
    doubtful = " whose label is in doubt" if "train" in splits else ""
    return f"Shown are {listed}{doubtful}."


def about_style(found: Mapping[str, Any]) -> str:
    """What else the style field holds."""
    rank = (
        f"The style field fills {found['style_rank']:.1f} of its {found['style_columns']} "
        "directions (effective rank)."
    )
    agreement = found["view_agreement"]
    if agreement is None:
        return rank
    beside = agreement["classmates"]
    classmates = "" if beside is None else f" (two images of a class: {beside:.2f})"
    return (
        f"Two views of one image agree by {agreement['same_image']:.2f} in the style field"
        f"{classmates} and by {agreement['common_same_image']:.2f} in the common field. {rank}"
    )


def problem_groups(
    problems: Sequence[Mapping[str, str]],
) -> list[tuple[str, list[Mapping[str, str]]]]:
    """Problems by kind, the most frequent first."""
    counts = Counter(problem["kind"] for problem in problems)
    return [
        (problem_title(kind), [p for p in problems if p["kind"] == kind])
        for kind, _ in counts.most_common()
    ]
