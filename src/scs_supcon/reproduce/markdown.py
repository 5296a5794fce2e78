"""README.md of a results folder: our numbers, the published ones beside them, tests and runs."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from scs_supcon.benchmark import statistics
from scs_supcon.benchmark.compare import ComparisonReport, describe_repeats
from scs_supcon.benchmark.pairwise import ALPHA
from scs_supcon.benchmark.results import CellResult
from scs_supcon.benchmark.table import Table
from scs_supcon.benchmark.tables import NOT_RUN, escape_markdown
from scs_supcon.io.records import read_json_object, table_of
from scs_supcon.methods import method_class, parse
from scs_supcon.progress import format_duration
from scs_supcon.reproduce.experiment import published_columns, read_scale
from scs_supcon.reproduce.plan import Plan
from scs_supcon.reproduce.records import Number, predictions_file, recipe_file

CAUTION = {
    "smoke": "This scale shows that everything runs. Its numbers mean nothing.",
    "small": (
        "The published numbers are for other images, encoders and schedules: compare the order of "
        "the methods, not the values."
    ),
}


def comparison_page(
    plan: Plan,
    table: Table,
    report: ComparisonReport,
    numbers: Sequence[Number],
    figures: Iterable[str],
    environment: str,
) -> str:
    """Return README.md of a comparison."""
    parts = [
        *heading(plan, describe_repeats(table)),
        number_table(plan, numbers),
        _explanation(plan),
        *(f"![{Path(name).stem.replace('_', ' ')}](figures/{name})" for name in figures),
        "## Tests",
        *_findings(report),
    ]
    if plan.experiment.folds:
        parts.append(fold_tests(plan, numbers))
    parts += ["## Runs", run_table(report.results), environment]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(plan: Plan, repeats: str = "") -> list[str]:
    """Return the title, the scale and the command."""
    scale, options = plan.scale, plan.options
    lines = [f"# {plan.experiment.title}"]
    facts = [f"Scale **{options.scale}**"]
    if plan.columns:
        facts += [repeats, f"{scale.epochs} epochs of stage 1"]
        facts += [f"settings `{' '.join(options.settings)}`"] if options.settings else []
        lines.append(", ".join(fact for fact in facts if fact) + ".")
    if plan.columns and options.scale in CAUTION:
        lines.append(CAUTION[options.scale])
    lines.extend(plan.notes)
    lines.append(f"```\n{command(plan)}\n```")
    return lines


def command(plan: Plan) -> str:
    """Return the command that makes this folder; folders of the machine are left out."""
    options = plan.options
    words = ["scs reproduce", plan.name, "--scale", options.scale]
    used = [column.dataset for column in plan.columns]
    if plan.experiment.table:  # its runs are those of another experiment
        used = list(options.data)
    for name in dict.fromkeys(used):
        if name in options.data:
            words.append(f"--data {name}={Path(options.data[name]).name}")
    if options.weights:
        words.append(f"--weights {options.weights.name}")
    if options.unfreeze:
        words.append("--unfreeze")
    words += [f'--row "{row}"' for row in options.rows]
    if options.seeds:
        words.append(f"--seeds {options.seeds}")
    if options.images_per_class:
        counts = ",".join(str(count or "all") for count in options.images_per_class)
        words.append(f"--images-per-class {counts}")
    if scale_epochs(plan) != plan.scale.epochs:
        words.append(f"--set pretrain.epochs={plan.scale.epochs}")
    return " ".join([*words, *(f"--set {setting}" for setting in options.settings)])


def describe_runs(results: Sequence[CellResult]) -> str:
    """Return a sentence on the machine and the code of the finished runs."""
    environments = [
        read_json_object(result.run / "environment.json") for result in results if result.evaluation
    ]
    if not environments:
        return ""
    first = environments[0]
    commits = dict.fromkeys(str(values.get("commit") or "unknown")[:12] for values in environments)
    libraries = table_of(first, "libraries", "environment.json")
    seconds = sum(result.seconds or 0 for result in results)
    return (
        f"{len(environments)} runs, {format_duration(seconds)} in total, on "
        f"{first.get('gpu') or first.get('cpu')} (threads: {first.get('threads')}), "
        f"torch {libraries.get('torch')}, scs-supcon {libraries.get('scs-supcon')}, "
        f"commit {', '.join(commits)}."
    )


def scale_epochs(plan: Plan) -> int:
    """Return the epochs of the scale before the user's settings."""
    return read_scale(plan.options.scale).epochs


def number_table(plan: Plan, numbers: Sequence[Number]) -> str:
    """Return a table: per column ours, on the features, and the paper's if it has one."""
    header, ruler = ["method"], ["---"]
    shown = 3 if plan.experiment.published else 2
    for column in dict.fromkeys(number.column.name for number in numbers):
        paper = next(n.column.paper.name for n in numbers if n.column.name == column)
        titles = [escape_markdown(column), "on the features", f"paper: {escape_markdown(paper)}"]
        header += titles[:shown]
        ruler += ["---:"] * shown
    adapted = _adapted(plan)
    rows: dict[str, list[str]] = {}
    for number in numbers:
        name = f"{number.row} (adapted)" if number.row in adapted else number.row
        rows.setdefault(name, []).extend(_number_cells(number)[:shown])
    lines = [header, ruler, *([escape_markdown(row), *cells] for row, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run_table(results: Sequence[CellResult]) -> str:
    """Return a table with one line per run."""
    lines = ["| method | column | seed | accuracy | on the features | class in style | seconds | |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|---|")
    for result in results:
        cell, evaluation = result.cell, result.evaluation
        seed = f"{cell.seed}" if cell.fold is None else f"{cell.seed}, fold {cell.fold}"
        names = f"| {escape_markdown(cell.row)} | {escape_markdown(cell.column)} | {seed} "
        if evaluation is None:
            lines.append(f"{names}| {result.status} | | | | |")
            continue
        probe = evaluation.baselines.linear_probe_of_encoder
        style = evaluation.leakage.class_from_style if evaluation.leakage else None
        lines.append(
            f"{names}| [{100 * evaluation.accuracy:.2f}]({recipe_file(result)}) "
            f"| {'' if probe is None else f'{100 * probe:.2f}'} "
            f"| {'' if style is None else f'{100 * style:.2f}'} "
            f"| {'' if result.seconds is None else f'{result.seconds:.0f}'} "
            f"| [predictions]({predictions_file(result)}) |"
        )
    lines += [
        "",
        "*Class in style*: how many classes a linear classifier reads from the style field.",
    ]
    return "\n".join(lines)


def fold_tests(plan: Plan, numbers: Sequence[Number]) -> str:
    """Return the plain paired t-test of the paper beside the corrected one, ours and published.

    A dagger marks a row that the control beats with p < 0.05 by the plain test, as in the paper.
    """
    control, *others = [number for number in numbers if number.results]
    published = published_columns(plan.experiment)
    lines = [f"## {control.row} against each other method, over the folds", ""]
    lines += ["| method | plain t | p | corrected t | p | paper: plain t | p |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    folds = len(control.results)
    for other in others:
        if len(other.results) < 2 or len(other.results) != folds:
            continue
        runs = [[result.predictions() for result in n.results] for n in (control, other)]
        ours = [[run.accuracy for run in method_runs] for method_runs in runs]
        ratio = mean(len(run.images) / run.training_images for run in runs[0])
        names = control.row, other.row
        plain = statistics.paired_t(*ours, names=names)
        corrected = statistics.corrected_t(*ours, test_per_train=ratio, names=names)
        dagger = " †" if plain.p < ALPHA and plain.t > 0 else ""
        tests = [plain, corrected]
        if control.row in published and other.row in published:
            theirs = [
                [value for name, value in published[row].items() if name.startswith("fold")]
                for row in names
            ]
            tests.append(statistics.paired_t(*theirs, names=names))
        cells = [f"{test.t:.2f} | {test.p:.2g}" for test in tests]
        cells += [f"{NOT_RUN} | {NOT_RUN}"] * (3 - len(tests))
        lines.append(f"| {escape_markdown(other.row)}{dagger} | {' | '.join(cells)} |")
    lines += ["", "†: the control is better by the plain paired t-test, p < 0.05, as in the paper."]
    return "\n".join(lines)


def linked_mean(average: float, spread: float | None, results: Sequence[CellResult]) -> str:
    """Return mean ± spread, then the seed or fold of each run as a link to its recipe."""
    deviation = "" if spread is None else f" ± {spread:.2f}"
    links = " ".join(
        f"[{result.cell.seed if result.cell.fold is None else result.cell.fold}]"
        f"({recipe_file(result)})"
        for result in results
    )
    return f"{average:.2f}{deviation} {links}".rstrip()


def _number_cells(number: Number) -> list[str]:
    published = NOT_RUN if number.published is None else f"{number.published:.1f}"
    if number.mean is None:
        return [NOT_RUN, NOT_RUN, published]
    features = NOT_RUN if number.features is None else f"{number.features:.2f}"
    return [linked_mean(number.mean, number.spread, number.sources), features, published]


def _adapted(plan: Plan) -> set[str]:
    return {row.name for row in plan.rows if method_class(parse(row.method)[0]).adapted}


def _explanation(plan: Plan) -> str:
    kind = "folds" if plan.experiment.folds else "seeds"
    adapted = (
        " *Adapted*: the original method is for other data, or its details could not be checked."
    )
    return (
        f"Test accuracy in per cent: mean ± standard deviation, then the {kind} as links to their "
        "recipes, which contain the command. *On the features*: a linear classifier on the "
        "features of the trained encoder, so that all methods are compared at the same place."
        + (adapted if _adapted(plan) else "")
    )


def _findings(report: ComparisonReport) -> list[str]:
    parts = []
    for finding in report.comparison.findings:
        sentences = " ".join([*finding.sentences, *(f"*{text}*" for text in finding.warnings)])
        parts.append(f"**{finding.title}.** {sentences}")
    return parts
