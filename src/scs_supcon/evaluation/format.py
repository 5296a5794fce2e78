"""Titles, explanations and sentences for an evaluation."""

import shlex
from collections.abc import Iterator, Sequence

from scs_supcon.errors import did_you_mean
from scs_supcon.evaluation.record import Evaluation, Leakage, PairStatistics, UnknownEvaluation

SCORE_TITLES = {
    "accuracy": "top-1 accuracy",
    "top5_accuracy": "top-5 accuracy",
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
}
SCORE_MEANINGS = {
    "accuracy": "the first prediction is correct",
    "top5_accuracy": "the correct class is among the first five",
    "macro_f1": "mean F1 of the classes",
    "balanced_accuracy": "mean recall of the classes",
}
BASELINE_TITLES = {
    "knn_on_probe_input": "kNN on the probe input",
    "nearest_class_mean": "nearest class mean",
    "linear_probe_of_encoder": "linear probe of the encoder",
    "knn_on_encoder": "kNN on the encoder",
    "own_classifier": "the method's own classifier",
    "probe": "stage 2 on the probe input",
}
BASELINE_MEANINGS = {
    "knn_on_probe_input": "vote of the ten most similar training images",
    "nearest_class_mean": "the class with the closest mean",
    "linear_probe_of_encoder": "a linear classifier on the encoder's features",
    "knn_on_encoder": "vote of the ten training images with the most similar features",
}
LISTED = 5
ALIKE = 0.95  # mean style similarity of images of a class, above which style counts as constant
LOW_RANK = 2.0  # effective rank below which style counts as empty
FULL_OF_CLASS = 0.5  # share of the class information of the common field
LOW_TEMPERATURE, HIGH_TEMPERATURE = 0.05, 99.0
COLLAPSED_BINS, COLLAPSED_SHARE = 2, 0.95  # of the 60 bins between -1 and 1: above 0.93


def describe(evaluation: Evaluation | UnknownEvaluation) -> str:
    """Return the whole evaluation as a table with a short explanation of each number."""
    if isinstance(evaluation, UnknownEvaluation):
        return "\n".join(_unknown(evaluation))
    sections = (
        _head,
        _scores,
        _baselines,
        _embedding,
        _rejection,
        _groups,
        _leakage,
        _classes,
        _label_errors,
        _saved,
    )
    blocks = ["\n".join(section(evaluation)) for section in sections]
    return "\n\n".join(block for block in blocks if block)


def _unknown(evaluation: UnknownEvaluation) -> Iterator[str]:
    split = "" if evaluation.split == "all" else f", {evaluation.split} split"
    yield f"{evaluation.data}{split}: {evaluation.images:,} images of unknown classes only"
    hint = did_you_mean(evaluation.classes[0], evaluation.known_classes)
    yield f"the model has none of the classes {shorten(evaluation.classes)}{hint}"
    yield ""
    meaning = "of these images (correct, if their classes are new)"
    yield _line("rejected as unknown", f"{evaluation.rejected:.2%}", "", meaning)
    if evaluation.accepted_as:
        counts = [f"{name} ({count})" for name, count in evaluation.accepted_as.items()]
        yield f"the others are classified as {shorten(counts)}"
    if evaluation.saved_to:
        yield f"\nsaved to  {evaluation.saved_to}"


def linear_probe_command(data: str, run: str, *, encoder: str, weights: str, frozen: bool) -> str:
    """Return the command that trains the linear probe of a run's encoder as a model.

    Args:
        data: the images as given by the user.
        run: the run directory.
        encoder: name of the encoder.
        weights: as in the recipe.
        frozen: whether the encoder of the run is frozen.
    """
    words = ["scs train", shlex.quote(data), "--method baseline"]
    if frozen:
        words.append(f"--encoder {encoder} --frozen")
        if weights != "pretrained":
            words.append("--weights FILE")
    else:
        words.append(f"--init-from {shlex.quote(run)} --frozen")
    return " ".join([*words, f"--out {shlex.quote(run + '-linear')}"])


def leakage_sentence(leakage: Leakage) -> str:
    """Return a sentence that explains the leakage."""
    chance, common, style = leakage.chance, leakage.class_from_common, leakage.class_from_style
    excess = leakage.excess
    if style <= chance + 0.02 or excess < 0.1:
        meaning = "style reveals next to nothing about the class"
    elif excess < 0.4:
        meaning = "style reveals a little about the class"
    elif excess < 0.8:
        meaning = "style reveals much about the class"
    else:
        almost = "almost " if excess < 0.995 else ""
        meaning = f"style reveals {almost}as much about the class as common"
    return (
        f"The class of {style:.0%} of the images can be predicted from the style field alone, "
        f"compared to {common:.0%} from the common field and {chance:.0%} by chance: {meaning}."
    )


def pair_warnings(pairs: PairStatistics) -> tuple[str, ...]:
    """Return a sentence for each way in which the classification of pairs has failed."""
    warnings = []
    # Presets and `bias` change t and b only if the method has them; others are fitted later.
    learned = pairs.rule == "boundary"
    if pairs.t is not None and pairs.t < LOW_TEMPERATURE:
        fix = 'fix t and b (bias = "fixed")' if learned else "train for longer"
        warnings.append(
            f"The temperature t has run towards 0 ({pairs.t:.2g}): similarities hardly change "
            f"the probability of a pair. Lower the learning rate, or {fix}."
        )
    if pairs.t is not None and learned and pairs.t > HIGH_TEMPERATURE:
        warnings.append(
            f"The temperature t has run to its limit ({pairs.t:.3g}): almost every pair is "
            'certain. Lower the learning rate, or fix t and b (bias = "fixed").'
        )
    if not -1 <= pairs.threshold <= 1:
        fix = "use the preset solved" if learned else "lower the learning rate"
        warnings.append(
            f"The decision boundary {pairs.threshold:.3g} is outside of all similarities (−1 "
            f"to 1): it separates no pairs. Train for longer, or {fix}."
        )
    counts = pairs.histogram.different
    if sum(counts) and sum(counts[-COLLAPSED_BINS:]) > COLLAPSED_SHARE * sum(counts):
        warnings.append(
            "The common field has collapsed: images of different classes have almost the same "
            "vector. Lower the learning rate, or set head.centre = true."
        )
    return tuple(warnings)


def style_warnings(leakage: Leakage) -> tuple[str, ...]:
    """Return a sentence for each way in which the style field has failed."""
    agreement = leakage.view_agreement
    alike = agreement is not None and (agreement.style_same_class or 0) > ALIKE
    if leakage.style_rank == 0 or alike:
        return (
            "The style field is constant: all images have almost the same style vector. If it was "
            "trained, give the style term more weight, or lower the learning rate; if it was "
            "fitted, the features of the encoder hardly differ.",
        )
    sentences = []
    if leakage.style_rank < LOW_RANK < leakage.style_dim:
        sentences.append(
            f"The style field is almost empty: it uses {leakage.style_rank:.1f} of "
            f"{leakage.style_dim} directions. If it was trained, give the style term more "
            "weight, or use the recommended recipe, which fits the field."
        )
    if leakage.excess > FULL_OF_CLASS and leakage.class_from_common > leakage.chance + 0.05:
        sentences.append(
            f"The style field is full of class: it reveals {leakage.excess:.0%} of what the common "
            "field reveals about the class. Use the recommended recipe, which erases the class; if "
            "you do, use an encoder with more features."
        )
    return tuple(sentences)


def _head(evaluation: Evaluation) -> Iterator[str]:
    split = "" if evaluation.split == "all" else f", {evaluation.split} split"
    present = sum(row.images > 0 for row in evaluation.per_class)
    yield f"{evaluation.data}{split}: {evaluation.images:,} images of {present} classes"
    if evaluation.training_images:
        yield (
            f"{evaluation.training_images:,} of them are training images: the numbers are too "
            "optimistic, evaluate on other images"
        )


def _scores(evaluation: Evaluation) -> Iterator[str]:
    for name, title in SCORE_TITLES.items():
        score = getattr(evaluation.scores, name)
        interval = f"{score.low:.1%} to {score.high:.1%}"
        yield _line(title, f"{score.value:.2%}", interval, SCORE_MEANINGS[name])
    calibration = evaluation.calibration
    before = f"{calibration.before.ece:.2%} before"
    meaning = f"gap between confidence and accuracy; temperature {calibration.temperature:.3g}"
    yield _line("calibration error", f"{calibration.after.ece:.2%}", before, meaning)
    yield "95% confidence intervals"


def _baselines(evaluation: Evaluation) -> Iterator[str]:
    for name, value in evaluation.baselines.measured().items():
        yield _line(BASELINE_TITLES[name], f"{value:.2%}", "", BASELINE_MEANINGS.get(name, ""))


def _embedding(evaluation: Evaluation) -> Iterator[str]:
    retrieval, pairs = evaluation.retrieval, evaluation.pairs
    if retrieval.precision_at_1 is not None:
        meaning = "the most similar other image is of the same class"
        yield _line("P@1", f"{retrieval.precision_at_1:.2%}", "", meaning)
        meaning = "mean average precision among the R most similar images"
        yield _line("MAP@R", f"{retrieval.map_at_r:.2%}", "", meaning)
    if pairs.auc is not None:
        meaning = "a same-class pair is more similar than a different-class pair"
        yield _line("pair AUC", f"{pairs.auc:.4f}", "", meaning)
        rule = "threshold" if pairs.rule == "quantile" else "decision boundary"
        yield (
            f"{pairs.true_positive_rate:.1%} of the same-class pairs and "
            f"{pairs.false_positive_rate:.2%} of the different-class pairs reach the {rule} "
            f"{pairs.threshold:.3f} (all pairs of {pairs.images:,} images)"
        )


def _rejection(evaluation: Evaluation) -> Iterator[str]:
    rejection = evaluation.rejection
    yield _line(
        "rejected as unknown",
        f"{rejection.known_rejected:.2%}",
        "",
        "of the images of known classes (errors)",
    )
    if rejection.unknown_rejected is not None:
        names = shorten(rejection.unknown_classes)
        meaning = f"of {rejection.unknown_images:,} images of unknown classes: {names}"
        yield _line("", f"{rejection.unknown_rejected:.2%}", "", meaning)


def _groups(evaluation: Evaluation) -> Iterator[str]:
    analysis = evaluation.groups
    if analysis is None:
        return
    width = max(len(analysis.column), *(len(row.name) for row in analysis.groups))
    columns = f"{'accuracy':<24} {'calibration error':<24} rejected"
    yield f"{analysis.column:<{width}}   images  {columns}"
    for row in sorted(analysis.groups, key=lambda row: row.accuracy.value):
        cells = (row.accuracy, row.calibration_error, row.rejected)
        scores = " ".join(
            f"{f'{score.value:.1%} ({score.low:.1%} to {score.high:.1%})':<24}" for score in cells
        )
        yield f"{row.name:<{width}} {row.images:>8,}  {scores}{' few' * row.small}".rstrip()
    small = sum(row.small for row in analysis.groups)
    if small:
        yield (
            f"warning: groups with fewer than {analysis.small_images} images ('few'), too few for "
            f"a conclusion: {small} of {len(analysis.groups)}"
        )
    if analysis.worst is not None:
        yield f"lowest accuracy: {analysis.worst}"
    if analysis.p_value is not None:
        differ = "differ" if analysis.p_value < 0.05 else "do not differ significantly"
        yield f"the accuracies of the groups {differ} (χ² test, p = {analysis.p_value:.2g})"


def _leakage(evaluation: Evaluation) -> Iterator[str]:
    leakage = evaluation.leakage
    if leakage is None:
        return
    yield leakage_sentence(leakage)
    agreement = leakage.view_agreement
    if agreement and agreement.style_same_class is not None:
        yield (
            f"style similarity: {agreement.style_same_image:.2f} for two views of one image, "
            f"{agreement.style_same_class:.2f} for two images of one class"
        )
    yield f"effective rank of the style field: {leakage.style_rank:.1f} of {leakage.style_dim}"
    probes = {"kNN": leakage.class_from_style_knn, "a neural network": leakage.class_from_style_mlp}
    measured = [f"{value:.0%} by {name}" for name, value in probes.items() if value is not None]
    if measured:
        yield f"class from style: {leakage.class_from_style:.0%} linearly, {', '.join(measured)}"
    if leakage.style_purity is not None:
        yield f"class purity of neighbours in style: {leakage.style_purity:.2f} (0 is chance)"
    if leakage.variance_explained is not None:
        yield f"style explains {leakage.variance_explained:.0%} of the variance within classes"
    for factor in leakage.factors:
        yield (
            f"  {factor.name:<8} {factor.from_style:.2f} from style, {factor.from_common:.2f} from "
            f"common, {factor.from_features:.2f} from the features"
        )
    yield from style_warnings(leakage)


def _classes(evaluation: Evaluation) -> Iterator[str]:
    imperfect = [row for row in evaluation.per_class if row.images and row.f1 < 1]
    hardest = sorted(imperfect, key=lambda row: row.f1)[:LISTED]
    if hardest:
        width = max(13, *(len(row.name) for row in hardest))
        yield f"{'hardest classes':<{width + 2}} images  precision   recall       F1 rejected"
    for row in hardest:
        shares = (row.precision, row.recall, row.f1, row.rejected)
        columns = " ".join(f"{share:>8.1%}" for share in shares)
        yield f"  {row.name:<{width}} {row.images:>8}   {columns}"
    if evaluation.confused_pairs:
        yield ""
        yield "most confused"
    for pair in evaluation.confused_pairs[:LISTED]:
        times = "once" if pair.count == 1 else f"{pair.count} times"
        yield f"  {pair.label} predicted as {pair.prediction} {times}"


def _label_errors(evaluation: Evaluation) -> Iterator[str]:
    errors = evaluation.label_errors
    if errors:
        yield f"suspected label errors: {len(errors)}, most suspicious first"
    for error in errors[:LISTED]:
        yield f"  {error.image}: {error.label}, or {error.suggested}?"
    if len(errors) > LISTED:
        yield f"  and {len(errors) - LISTED} more"


def _saved(evaluation: Evaluation) -> Iterator[str]:
    if evaluation.saved_to:
        yield f"saved to  {evaluation.saved_to}"


def _line(title: str, value: str, interval: str, meaning: str) -> str:
    return f"{title:<28} {value:>8}  {interval:<17} {meaning}".rstrip()


def shorten(names: Sequence[str]) -> str:
    """Return the first five names and the number of the others."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
