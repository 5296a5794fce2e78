"""The commands that `make torture` kills, and the files that must be the same in the end."""

import csv
import io
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from command_processes import deterministic_files
from scs_supcon.methods import available

Arguments = Sequence[str | Path]
Files = dict[str, bytes]

QUICK = (
    *("--epochs", "2", "--batch-size", "16", "--device", "cpu", "--quiet"),
    *("--set", "probe.epochs=3", "--set", "probe.views=1"),
)
SHARES = ("--set", "data.test_share=0.34", "--set", "data.val_share=0.2")
# Settings that add state to a run; each method is trained with one of them.
SETTINGS: tuple[tuple[str, ...], ...] = (
    (),
    ("pretrain.micro_batch=8",),
    ("pretrain.batches=balanced", "pretrain.per_class=2"),
    ("pretrain.ema=0.9", "pretrain.patience=2"),
    ("pretrain.batches=long_tail", "pretrain.clip_norm=1"),
)


@dataclass(frozen=True)
class Scenario:
    """A command that can be repeated until it has finished.

    Attributes:
        name: For the report.
        command: Folder -> arguments of `scs`.
        result: Folder -> content of the files that must be the same.
        inputs: Folders that each attempt gets a copy of.
        codes: Exit codes of success; `doctor` ends with 1 if it finds problems.
        most_kills: Kills in a row, before the command may finish.
        prepare: Creates other files that the command needs in its folder.
        done: What an error says if the command has already finished and cannot be repeated.
    """

    name: str
    command: Callable[[Path], Arguments]
    result: Callable[[Path], Files]
    inputs: tuple[Path, ...] = ()
    codes: tuple[int, ...] = (0,)
    most_kills: int = 6
    prepare: Callable[[Path], None] = lambda folder: None
    done: str = ""


@dataclass(frozen=True)
class Inputs:
    """What the commands work on: a finished run, a folder of images, weights of an encoder."""

    run: Path
    images: Path
    weights: Path


def scenarios(given: Inputs) -> list[Scenario]:
    """Return training with every method, and the other commands that write files."""
    return [*_trainings(given), *_searches(given), *_other_commands(given)]


def _trainings(given: Inputs) -> list[Scenario]:
    tiny: Arguments = ("--encoder", "tiny", "--weights", given.weights)
    chosen: dict[str, Arguments] = {
        "default": (),
        "default, frozen": (*tiny, "--frozen"),
        "paco, frozen": (*tiny, "--frozen", "--method", "paco"),
        "baseline, unfreeze": (
            *(*tiny, "--unfreeze", "--method", "baseline", "--set", "pretrain.head_epochs=2"),
            *("--set", "pretrain.ema=0.9", "--set", "pretrain.patience=2"),
        ),
        "scs_supcon, memory": ("--method", "scs_supcon", "--set", "method.options.memory=4"),
        "scs_supcon, mixed": (
            *("--method", "scs_supcon", "--set", "pretrain.mixup=0.4"),
            *("--set", "pretrain.cutmix=1", "--set", "data.augment=trivial"),
        ),
        "supcon, two workers": ("--method", "supcon", "--workers", "2"),
    }
    for number, name in enumerate(available()):
        settings = SETTINGS[number % len(SETTINGS)]
        key = ", ".join([name, *settings])
        chosen[key] = ("--method", name, *(part for s in settings for part in ("--set", s)))
    return [
        Scenario(f"train {name}", _train(given.images, extra), _run_files)
        for name, extra in chosen.items()
    ]


def _searches(given: Inputs) -> list[Scenario]:
    def compare(folder: Path) -> Arguments:
        folders = ("--out", folder / "out", "--runs", folder / "runs")
        return ("compare", given.images, "--methods", "supcon", *QUICK, *SHARES, *folders)

    def tune(folder: Path) -> Arguments:
        search = ("--trials", "2", "--over", "pretrain.lr=0.01..0.1:log", "--workers", "0")
        return ("tune", given.images, "--out", folder / "out", *search, *QUICK)

    def reproduce(folder: Path) -> Arguments:
        data = ("--data", f"cifar100={given.images}", "--row", "SCS-SupCon", "--device", "cpu")
        folders = ("--out", folder / "out", "--runs", folder / "runs", "--quiet")
        settings = ("pretrain.epochs=1", "probe.epochs=2", "pretrain.batch_size=16")
        quick = [part for value in settings for part in ("--set", value)]
        return ("reproduce", "table8", *data, *folders, *quick, *SHARES)

    return [
        Scenario("compare", compare, _comparison_files),
        Scenario("tune", tune, _search_files, most_kills=2),  # a trial is tried three times
        Scenario("reproduce", reproduce, _comparison_files),
    ]


def _other_commands(given: Inputs) -> list[Scenario]:
    run, images = given.run, given.images

    def predict(folder: Path) -> Arguments:
        return ("predict", run, images, "--format", "csv", "-o", folder / "names.csv", "--quiet")

    def doctor(folder: Path) -> Arguments:
        return ("doctor", images, "--fix", "--out", folder / "problems.csv", "--quiet")

    return [
        Scenario("report", lambda folder: ("report", folder / run.name), _report_files, (run,)),
        Scenario(
            "export",
            lambda folder: ("export", run, "-o", folder / "model.onnx", "--quiet"),
            lambda folder: _files(folder, "*"),
        ),
        Scenario("predict -o", predict, _tables),
        Scenario("doctor --fix", doctor, _tables, codes=(0, 1)),
    ]


def point_scenarios(given: Inputs) -> list[Scenario]:
    """Return the commands that are killed before each file operation in turn."""
    chosen = (
        *("train default", "train default, frozen", "train baseline, unfreeze"),
        *("train supcon, two workers", "compare", "tune", "reproduce", "report", "export"),
        *("predict -o", "doctor --fix"),
    )
    known = {scenario.name: scenario for scenario in scenarios(given)}
    return [*(known[name] for name in chosen), *_commands_that_change_files(given)]


def _commands_that_change_files(given: Inputs) -> list[Scenario]:
    run, images = given.run, given.images
    one_class = min(images.iterdir())

    def embed(folder: Path) -> Arguments:
        return ("embed", run, images, "-o", folder / "vectors.parquet", "--quiet")

    def corrections(folder: Path) -> None:
        names = (run / "splits.csv").read_text().splitlines()[1:3]
        rows = "".join(f"{name.split(',')[0]},-\n" for name in names)
        (folder / "corrections.csv").write_text(f"image,new_label\n{rows}")

    def relabel(folder: Path) -> Arguments:
        return ("relabel", run, folder / "corrections.csv", "-o", folder / "corrected.csv")

    def add_class(folder: Path) -> Arguments:
        return ("add-class", folder / run.name, "another", one_class)

    def sort_into(folder: Path) -> Arguments:
        return ("predict", run, one_class, "--sort-into", folder / "sorted", "--quiet")

    return [
        Scenario("embed", embed, _all_files),
        Scenario(
            "embed --parts",
            lambda folder: (*embed(folder), "--parts", folder / "parts"),
            _all_files,
        ),
        Scenario(
            "pack",
            lambda folder: ("pack", images, folder / "packed", "--workers", "0", "--quiet"),
            _all_files,
        ),
        Scenario("relabel", relabel, _all_files, prepare=corrections),
        Scenario("add-class", add_class, _model_files, (run,), done="not in use"),
        Scenario(
            "add-class --out",
            lambda folder: ("add-class", run, "another", one_class, "--out", folder / "model"),
            _model_files,
        ),
        Scenario("predict --sort-into", sort_into, _all_files),
    ]


def prepared(scenario: Scenario, work: Path) -> Path:
    """Create an empty folder with a copy of what the command needs."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for source in scenario.inputs:
        shutil.copytree(source, work / source.name)
    scenario.prepare(work)
    return work


def without_columns(content: bytes, *names: str) -> bytes:
    """Return a CSV file without some columns, such as the durations of runs."""
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    kept = [number for number, name in enumerate(rows[0]) if name not in names]
    text = io.StringIO()
    csv.writer(text).writerows([row[number] for number in kept] for row in rows)
    return text.getvalue().encode()


def _train(images: Path, extra: Arguments) -> Callable[[Path], Arguments]:
    workers = () if "--workers" in extra else ("--workers", "0")

    def command(folder: Path) -> Arguments:
        folders = ("--out", folder / "run", "--cache", folder / "cache", "--no-report")
        return ("train", images, *folders, *QUICK, *workers, *extra)

    return command


def _run_files(folder: Path) -> Files:
    return deterministic_files(folder / "run") | _temporary_files(folder)


# How a page states the duration of runs, which differs: in tables, with at most one digit after
# the point (metrics have two), and in total.
DURATIONS = re.compile(
    rb"(?<=\| )\d+ (?=\| \[pred)|<td data-value=\"[\d.]+\">\d+(\.\d)?</td>"
    rb"|(less than a second|[\d.]+ (s|min|h)) in t"
)
SECONDS = ("seconds", "seconds_extraction", "seconds_without_extraction")


def _runs(folder: Path) -> Files:
    return {
        f"{run.name}/{name}": content
        for run in sorted(folder.iterdir())
        if (run / "finished.json").exists()
        for name, content in deterministic_files(run).items()
    }


def _comparison_files(folder: Path) -> Files:
    files = _runs(folder / "runs") | _temporary_files(folder)
    for name, content in _files(folder, "out/**/*").items():
        is_csv = name.endswith("csv")
        same = without_columns(content, *SECONDS) if is_csv else DURATIONS.sub(b"", content)
        files[name] = content if name.endswith("png") else same
    return files


def _search_files(folder: Path) -> Files:
    files = _runs(folder / "out" / "trials") | _files(folder, "out/[!.]*")
    del files["out/study.journal"]  # it has times, and the trials that were killed
    files["out/trials.csv"] = without_columns(files["out/trials.csv"], "trial")
    return files | _temporary_files(folder)


def _report_files(folder: Path) -> Files:
    files = _files(folder, "*/report.html") | _files(folder, "*/figures/*")
    return files | _temporary_files(folder)


def _tables(folder: Path) -> Files:
    return _files(folder, "*.csv") | _temporary_files(folder)


def _all_files(folder: Path) -> Files:
    files = _files(folder, "**/*")
    return {name: files[name] for name in files if not name.endswith(".lock")}  # process ids


def _model_files(folder: Path) -> Files:
    return _files(folder, "**/model/*")


def _files(folder: Path, pattern: str) -> Files:
    files = (path for path in folder.glob(pattern) if path.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def _temporary_files(folder: Path) -> Files:
    return {str(file.relative_to(folder)): b"" for file in folder.rglob("*.tmp")}
