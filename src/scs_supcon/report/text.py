"""Sentences about the results of a run."""

from collections import Counter
from collections.abc import Mapping, Sequence

from scs_supcon.data.dataset import problem_title
from scs_supcon.evaluation.record import (
    Calibration,
    Leakage,
    PairStatistics,
    Rejection,
    Retrieval,
    Score,
)
from scs_supcon.report.style_axes import StyleAxis


def percent(value: float, digits: int = 1) -> str:
    """Return a share in per cent."""
    return f"{value:.{digits}%}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def about_baselines(score: Score, baselines: Mapping[str, float]) -> str:
    """Return a sentence that compares the model with the best baseline.

    Args:
        score: the accuracy of the model.
        baselines: accuracies by title.
    """
    if not baselines:
        return "No baseline was measured."
    name = max(baselines, key=lambda title: baselines[title])
    difference = baselines[name] - score.value
    points = f"{100 * abs(difference):.1f} points"
    inside = score.low <= baselines[name] <= score.high
    if abs(difference) < 0.0005:
        return f"The best baseline, {name}, has the same accuracy."
    if difference > 0 and inside:
        return (
            f"The best baseline, {name}, is {points} better, within the confidence interval: the "
            "difference may be due to chance."
        )
    if difference > 0:
        return (
            f"The best baseline, {name}, is {points} better, outside the confidence interval: use "
            "it if only accuracy matters."
        )
    if inside:
        return (
            f"It is {points} better than the best baseline, {name}, within the confidence "
            "interval: the difference may be due to chance."
        )
    return f"It is {points} better than the best baseline, {name}, outside the confidence interval."


def about_pairs(pairs: PairStatistics) -> str:
    """Return sentences about how well the boundary separates pairs."""
    true_rate, false_rate = pairs.true_positive_rate, pairs.false_positive_rate
    if true_rate is None or false_rate is None:
        return "There are too few images to compare same-class and different-class pairs."
    origin = {
        "boundary": "the learned boundary",
        "fitted": "the boundary fitted to held-out pairs",
        "quantile": "the threshold chosen on the validation split (this method learns no boundary)",
    }[pairs.rule]
    ranked = ""
    if pairs.auc is not None:
        ranked = (
            " A random same-class pair is more similar than a random different-class pair in "
            f"{percent(pairs.auc)} of cases (AUC)."
        )
    return (
        f"{percent(true_rate)} of the same-class pairs and "
        f"{percent(false_rate, 2 if false_rate < 0.01 else 1)} of the different-class pairs have a "
        f"similarity above {origin} ({pairs.threshold:.2f}).{ranked}"
    )


def about_calibration(calibration: Calibration) -> str:
    """Return a sentence about the calibration of the probabilities."""
    before, after = calibration.before.ece, calibration.after.ece
    change = "down from" if after < before else "not better than"
    return (
        f"Confidence and accuracy differ by {100 * after:.1f} points on average (expected "
        f"calibration error), {change} {100 * before:.1f} before temperature scaling (temperature "
        f"{calibration.temperature:.2f})."
    )


def about_rejection(rejection: Rejection) -> str:
    """Return sentences about known and unknown images rejected as unknown."""
    text = f"{percent(rejection.known_rejected)} of these images are wrongly rejected as unknown."
    if rejection.unknown_rejected is not None:
        images = plural(rejection.unknown_images, "image")
        text += (
            f" Of {images} of unknown classes, {percent(rejection.unknown_rejected)} are rejected."
        )
    return text


def about_retrieval(retrieval: Retrieval) -> str:
    """Return a sentence about the classes of neighbours; empty if they were not measured."""
    if retrieval.precision_at_1 is None or retrieval.map_at_r is None:
        return ""
    return (
        f"The nearest other image is of the same class in {percent(retrieval.precision_at_1)} of "
        f"cases (P@1); MAP@R is {percent(retrieval.map_at_r)}."
    )


def about_shown_images(splits: Sequence[str]) -> str:
    """Return a sentence that counts the images on the page."""
    nouns = {"test": "test image", "val": "validation image", "train": "training image"}
    counts = [plural(splits.count(key), noun) for key, noun in nouns.items() if key in splits]
    listed = " and ".join([", ".join(counts[:-1]), counts[-1]] if counts[1:] else counts)
    suspected = " with a suspected label error" if "train" in splits else ""
    return f"The page shows {listed}{suspected}."


def about_style(leakage: Leakage) -> str:
    """Return sentences about what the style field holds besides the class."""
    sentences = []
    agreement = leakage.view_agreement
    if agreement is not None:
        same_class = agreement.style_same_class
        compared = "" if same_class is None else f" (two images of one class: {same_class:.2f})"
        sentences.append(
            f"Two views of one image have a similarity of {agreement.style_same_image:.2f} in the "
            f"style field{compared} and {agreement.common_same_image:.2f} in the common field."
        )
    if leakage.variance_explained is not None:
        sentences.append(
            f"Style explains {percent(leakage.variance_explained, 0)} of what differs between the "
            "features of images of a class."
        )
    if leakage.style_purity is not None:
        sentences.append(
            f"The class purity of neighbours in style is {leakage.style_purity:.2f} (0: chance, 1: "
            "all of the same class)."
        )
    sentences.append(
        f"The effective rank of the style field is {leakage.style_rank:.1f} of "
        f"{leakage.style_dim} dimensions."
    )
    return " ".join(sentences)


def axis_title(axis: StyleAxis) -> str:
    """Return a title such as "Brightness (r = 0.61)"."""
    return f"{axis.name[0].upper()}{axis.name[1:]} (r = {axis.correlation:.2f})"


def problem_groups(
    problems: Sequence[Mapping[str, str]],
) -> list[tuple[str, list[Mapping[str, str]]]]:
    """Return the problems by kind, the most frequent kind first."""
    counts = Counter(problem["kind"] for problem in problems)
    return [
        (problem_title(kind), [p for p in problems if p["kind"] == kind])
        for kind, _ in counts.most_common()
    ]
