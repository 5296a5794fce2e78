"""Check pair losses of several libraries against their own formulas in float64.

    python benchmarks/conformance.py                 check all, write docs/benchmarks/conformance.md
    python benchmarks/conformance.py --only lightly  check some losses and print the page

The losses and their formulas are in `conformance_losses.py`. Libraries that are not installed are
skipped. In addition to the extra `bench`:

    pip install lightly sentence-transformers pykeops info-nce-pytorch

The gradient of a formula is compared in random directions v, with derivatives by a complex step:
Im f(z + i h v) / h has no rounding error of a difference, however small h is.
"""

import argparse
import importlib.metadata
import platform
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conformance_losses import LOSSES, MOST_ROWS, ROWS, WIDTH, Array, Loss, WithParameters, unit
from torch import Tensor

OUT = Path(__file__).parents[1] / "docs" / "benchmarks" / "conformance.md"
PRIME, LARGE = 97, 1031  # prime numbers
CLASSES, WITHOUT = 12, 10
VALUE, GRADIENT = 1e-5, 1e-4  # largest relative errors in float32
DIRECTIONS, STEP = 8, 1e-30
CHUNKS = 7, 32
MISSING, TOO_LARGE = "–", "does not fit"


class Failure(Exception):
    """A check that failed; the message says what was measured."""


# Batches and results.


class Batch(NamedTuple):
    rows: Array  # (N, D) float64
    labels: Array  # (N,), or (N, K) probabilities


def make_batch(loss: Loss, number: int = ROWS) -> Batch:
    """Return rows of several classes, or pairs of rows; a prime number stays prime."""
    random = np.random.default_rng(0)
    if loss.views:
        pairs = {PRIME: PRIME, LARGE: 521}.get(number, number // 2)
        labels = np.tile(np.arange(pairs), 2)
    else:
        labels = np.arange(number) % CLASSES
    centres = random.normal(size=(labels.max() + 1, WIDTH))
    rows = centres[labels] + random.normal(size=(len(labels), WIDTH))
    return Batch(rounded(unit(rows) if loss.unit_rows else rows), labels)


def rounded(rows: Array) -> Array:
    """Return float64 numbers that float32 represents exactly."""
    return rows.astype(np.float32).astype(float)


class Result(NamedTuple):
    value: float
    gradient: Array
    scalars: tuple[float, ...]  # gradients of learned numbers


def run(
    loss_and_parameters: WithParameters, batch: Batch, dtype: torch.dtype = torch.float32
) -> Result:
    function, parameters = loss_and_parameters
    z = torch.tensor(batch.rows).to(dtype).requires_grad_()
    value = function(z, torch.tensor(batch.labels))
    value.backward()
    assert z.grad is not None
    scalars = tuple(float(p.grad) for p in parameters if p.grad is not None)
    return Result(float(value.detach()), z.grad.double().numpy(), scalars)


def relative(x: Any, expected: Any) -> float:
    """Return the relative error; the absolute error if 0 is expected."""
    x, expected = np.asarray(x, dtype=float), np.asarray(expected, dtype=float)
    return float(np.linalg.norm(x - expected) / (np.linalg.norm(expected) or 1))


def errors(loss: Loss, batch: Batch, result: Result) -> tuple[float, float]:
    """Return the relative errors of the value and of the gradient."""
    rows, labels = batch.rows, batch.labels
    value = np.real(loss.formula(rows, labels, *loss.scalars))
    directions = np.random.default_rng(1).normal(size=(DIRECTIONS, *rows.shape))
    moved = [loss.formula(rows + 1j * STEP * v, labels, *loss.scalars) for v in directions]
    expected = [np.imag(x) / STEP for x in moved]
    worst = relative([np.vdot(result.gradient, v) for v in directions], expected)
    if len(result.scalars) != len(loss.scalars):
        return relative(result.value, value), np.inf
    for k, gradient in enumerate(result.scalars):
        scalars: list[Any] = list(loss.scalars)
        scalars[k] += 1j * STEP
        by_scalar = np.imag(loss.formula(rows, labels, *scalars)) / STEP
        worst = max(worst, relative(gradient, by_scalar))
    return relative(result.value, value), worst


def show(x: float) -> str:
    text = f"{x:.1g}" if 0.01 <= x < 1000 else f"{x:.0e}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def compare(value: float, gradient: float) -> str:
    """Return "ok", or raise Failure if an error is too large."""
    if value <= VALUE and gradient <= GRADIENT:
        return "ok"
    parts = []
    if not value <= VALUE:
        parts.append("value not finite" if np.isnan(value) else f"value off by {show(value)}")
    if not gradient <= GRADIENT:
        off = f"gradient off by {show(gradient)}"
        parts.append(off if np.isfinite(gradient) else "gradient not finite")
    raise Failure(", ".join(parts))


# The checks: each returns the text of a cell, or raises Failure.


def check(loss: Loss, rows: Array, labels: Array) -> str:
    batch = Batch(rows, labels)
    return compare(*errors(loss, batch, run(loss.make(), batch)))


def accuracy(loss: Loss, number: int) -> str:
    if number > loss.most_rows:
        return TOO_LARGE
    batch = make_batch(loss, number)
    value, gradient = errors(loss, batch, run(loss.make(), batch))
    compare(value, gradient)
    return f"{show(value)}, {show(gradient)}"


def bfloat16(loss: Loss) -> str:
    """Compare with the formula of the rounded rows."""
    rows, labels = make_batch(loss)
    batch = Batch(torch.tensor(rows).bfloat16().double().numpy(), labels)
    value, gradient = errors(loss, batch, run(loss.make(), batch, torch.bfloat16))
    if not np.isfinite(value + gradient):
        raise Failure("not finite")
    return f"{show(value)}, {show(gradient)}"


def with_labels(loss: Loss, change: Callable[[Array], Array]) -> str:
    rows, labels = make_batch(loss)
    return check(loss, rows, change(labels))


def some_without_positives(labels: Array) -> Array:
    """Give the last rows classes of their own."""
    return np.where(np.arange(len(labels)) < len(labels) - WITHOUT, labels, 100 + np.arange(ROWS))


def prime(loss: Loss) -> str:
    return check(loss, *make_batch(loss, PRIME))


def equal_rows(loss: Loss) -> str:
    """Make rows equal to a positive and to a negative."""
    rows, labels = make_batch(loss)
    rows[len(rows) // 2] = rows[0]  # the positive of row 0, with labels as with views
    rows[2] = rows[3] = rows[1]
    return check(loss, rows, labels)


def zero_row(loss: Loss) -> str:
    """Return "ok", or how much larger than all others the gradient of the zero row is."""
    rows, labels = make_batch(loss)
    rows[5] = 0
    result = run(loss.make(), Batch(rows, labels))
    if not (np.isfinite(result.value) and np.isfinite(result.gradient).all()):
        raise Failure("value or gradient not finite")
    expected = np.real(loss.formula(rows, labels, *loss.scalars))
    compare(relative(result.value, expected), 0.0)
    lengths = np.linalg.norm(result.gradient, axis=1)
    factor = lengths[5] / np.delete(lengths, 5).max()
    return "ok" if factor <= 10 else f"× {show(factor)}"


def scaled(loss: Loss, factor: float) -> str:
    rows, labels = make_batch(loss)
    # Rows of one length, so that squares overflow in all rows or in none.
    return check(loss, rounded(unit(rows) * WIDTH**0.5 * factor), labels)


def chunks(loss: Loss) -> str:
    batch = make_batch(loss)
    whole = run(loss.make(), batch)
    for size in CHUNKS:
        result = run(loss.make(chunk=size), batch)
        off = (relative(x, y) for x, y in zip(result[1:], whole[1:], strict=True))
        compare(relative(result.value, whole.value), max(off))
    return "ok"


def soft_targets(loss: Loss) -> str:
    """Compare with probabilities; rows that do not sum to 1 must be an error."""
    p = np.random.default_rng(2).dirichlet(np.ones(5), size=ROWS)
    rows = make_batch(loss).rows
    check(loss, rows, p)
    try:
        run(loss.make(), Batch(rows, 2 * p))
    except ValueError:
        return "ok"
    raise Failure("no error for rows that sum to 2")


def equal_bits(loss: Loss) -> str:
    """Compare the bits of two runs with two threads."""
    batch = make_batch(loss, min(LARGE, loss.most_rows))
    torch.set_num_threads(2)
    try:
        first, second = run(loss.make(), batch), run(loss.make(), batch)
    finally:
        torch.set_num_threads(1)
    equal = first.value == second.value and first.scalars == second.scalars
    if equal and np.array_equal(first.gradient, second.gradient):
        return "ok"
    raise Failure(f"gradients differ by {show(relative(first.gradient, second.gradient))}")


# Memory.


class Saved:
    """A tensor that autograd saved; it lives as long as the graph needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def saved_bytes(function: Callable[[], Tensor]) -> int:
    """Return the largest number of bytes that autograd saved at once in a forward pass."""
    alive: weakref.WeakSet[Saved] = weakref.WeakSet()
    most = 0

    def pack(tensor: Tensor) -> Saved:
        nonlocal most
        saved = Saved(tensor)
        alive.add(saved)
        storages = (x.tensor.untyped_storage() for x in alive)
        most = max(most, sum({s.data_ptr(): s.nbytes() for s in storages}.values()))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        function()
    return most


def held_bytes(function: Callable[[], Tensor]) -> int:
    """Return how many bytes more are allocated after a forward pass than before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        value = function()  # the graph has to be alive at the end
    del value
    return sum(event.self_cpu_memory_usage for event in profile.key_averages())


@cache
def multiples(loss: Loss, measure: Callable[..., int]) -> tuple[float, float]:
    """Return a number of bytes for half of the rows and for all, in multiples of N·D·4."""
    results = []
    for number in (loss.most_rows // 2, loss.most_rows):
        batch = make_batch(loss, number)
        z = torch.tensor(batch.rows, dtype=torch.float32, requires_grad=True)
        labels = torch.tensor(batch.labels)
        loss.make()[0](z, labels)  # compiles, and fills caches
        function, _ = loss.make()
        results.append(measure(lambda: function(z, labels)) / (4 * z.numel()))  # noqa: B023
    return results[0], results[1]


def memory(loss: Loss, measure: Callable[..., int]) -> str:
    number = f"{multiples(loss, measure)[1]:,.1f}"
    return number if loss.most_rows == MOST_ROWS else f"{number} (N = {loss.most_rows})"


def growth(loss: Loss) -> str:
    half, whole = multiples(loss, held_bytes)
    return f"× {2 * whole / half:.1f}" if half else MISSING


# Two processes.


def joined_batch(loss: Loss) -> Batch:
    rows, labels = make_batch(loss)
    return Batch(rows, labels if loss.views else some_without_positives(labels))


def rows_of(loss: Loss, rank: int) -> Array:
    """Return the indices of the rows of a process: half of them, or half of the pairs."""
    if not loss.views:
        return np.array_split(np.arange(ROWS), 2)[rank]
    pairs = np.array_split(np.arange(ROWS // 2), 2)[rank]
    return np.concatenate([pairs, pairs + ROWS // 2])


def worker(rank: int, folder: str, names: list[str]) -> None:
    """Run the losses on the rows of one process, and save the results."""
    quiet()
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/init", rank=rank, world_size=2, timeout=limit)
    results: dict[str, Any] = {}
    for loss in (x for x in LOSSES if key(x) in names):
        own = rows_of(loss, rank)
        rows, labels = joined_batch(loss)
        try:
            results[key(loss)] = run(loss.make(rank=rank), Batch(rows[own], labels[own]))
        except Exception as error:
            results[key(loss)] = type(error).__name__
            traceback.print_exc()
        dist.barrier()
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@cache
def results_of_ranks(names: tuple[str, ...]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder, list(names)), nprocs=2)
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(2)]


def two_processes(loss: Loss, names: tuple[str, ...]) -> str:
    """Compare the mean over two processes with one process and the joined batch.

    The average of an encoder's gradients is right for every encoder if the gradient of each row is
    twice that of the joined batch.
    """
    whole = run(loss.make(), joined_batch(loss))
    ranks = [results[key(loss)] for results in results_of_ranks(names)]
    for result in ranks:
        if isinstance(result, str):
            raise Failure(result)
    factor = 2 if loss.times_world else 1
    value = np.mean([result.value for result in ranks]) / factor
    gradient = np.zeros_like(whole.gradient)
    for rank, result in enumerate(ranks):
        gradient[rows_of(loss, rank)] = result.gradient / 2
    scalars = np.mean([result.scalars for result in ranks], axis=0)
    off = max(relative(gradient, whole.gradient), relative(scalars, whole.scalars))
    return compare(relative(value, whole.value), off)


# The page.

Check = Callable[[Loss], str]
NORMALIZE = (
    "`torch.nn.functional.normalize` sums squares in float32: above a length of about 1.8e19 the "
    "length is infinite and the row becomes 0."
)
CAUSES = {  # by library and check; shown if the check fails
    ("scs-supcon", f"N = {LARGE:,}"): "Above 2^20 pairs b is solved on a sample of the pairs.",
    ("lightly", "bfloat16"): "The memory bank is float32, and its product with bfloat16 rows is an "
    "error.",
    ("open_clip_torch", "two processes"): "By default the rows of other processes are gathered "
    "without a gradient: the average divides the gradient of the rows by the number of processes, "
    "but not that of the scale.",
    **{
        (library, "rows × 1e30"): NORMALIZE
        for library in {loss.library for loss in LOSSES} - {"scs-supcon", "open_clip_torch"}
    },
}
INTRODUCTION = f"""# Conformance of pair losses

Each loss is compared with its own formula, in the conventions of its own library, evaluated in
float64 with loops and NumPy. A difference of conventions is therefore never a failure. Created by
`python benchmarks/conformance.py`; the formulas are in `benchmarks/conformance_losses.py`.

- **ok**: relative errors of at most {show(VALUE)} (value) and {show(GRADIENT)} (gradient) in
  float32. The gradient includes learned temperatures and biases.
- **{MISSING}**: the library does not offer it, or the check does not apply.
- **fails**: explained in the note with this number.

Rows have {WIDTH} columns and {CLASSES} classes, or are pairs of rows for losses without labels
(N = {LARGE:,} then stands for 521 pairs). Losses of open_clip take rows of unit length. The rows of
pykeops and torch are formulas of this page, written with `torch.nn.functional.normalize`.
"""
TEXTS = {
    "Accuracy": """Relative errors of the value and of the gradient in float32, and with bfloat16
rows, compared with the formula of the rounded rows. A gradient in bfloat16 has an error of about
2e-3 by its own rounding.""",
    "Unusual batches": f"""No positives: {WITHOUT} of {ROWS} rows have no positive. Equal rows: one
row equals its positive, three equal each other. Zero row: "× 1e13" means that the gradient of the
zero row is finite, and so much larger than that of any other row, because a row is divided by at
least 1e-12. Rows × 1e18: the length of each row is 1e18 √{WIDTH}.""",
    "Training": f"""Chunks: the result does not depend on the size of chunks or tiles ({CHUNKS[0]},
{CHUNKS[1]} and the default). Soft targets: probabilities of classes as labels; rows that do not sum
to 1 are an error. Two processes (gloo): the mean over processes of values and gradients, as with
DistributedDataParallel, equals one process with the joined batch. Equal bits: of two runs with two
threads.

Memory is given in multiples of the input, 4 N·D bytes, for N = {MOST_ROWS:,}. Saved: what autograd
saves for the backward pass (`saved_tensors_hooks`), including the input. Held: what is allocated
between the forward and the backward pass (profiler), without the input; this includes matrices that
hooks do not see. 2 N: how held memory grows if N is doubled.""",
}
CONVENTIONS = """## Conventions

- scs-supcon: the mean over all anchors; an anchor without positives adds 0. `SCSSupCon` counts
  pairs (u, u), and keeps the share of positive pairs for which b is solved half a pair away from 0
  and 1. Mined pairs are computed in bands above 2^21 pairs, again in the backward pass.
- pytorch-metric-learning: `SupConLoss` averages over anchors with a loss above 0, `NTXentLoss` over
  positive pairs. Both are 0 for a batch without positive or without negative pairs.
  `NTXentLoss` holds matrices of positive × negative pairs, which do not fit into memory for
  N = 1,031 and are measured for N = 96.
- pytorch-metric-learning's `DistributedLossWrapper` multiplies the loss by the number of processes.
- lightly: the mean over all views. With a memory bank, the bank has all negatives.
- open_clip: `SigLipLoss` divides the sum over pairs by the number of rows, `ClipLoss` is the mean
  of both directions.
- sentence-transformers: the mean over anchors of the cross-entropy of 20 times the cosines.
"""


def tables(names: tuple[str, ...]) -> dict[str, dict[str, Check]]:
    """Return the checks of each table; `names` are run in two processes."""
    return {
        "Accuracy": {
            f"N = {ROWS}": partial(accuracy, number=ROWS),
            f"N = {LARGE:,}": partial(accuracy, number=LARGE),
            "bfloat16": bfloat16,
        },
        "Unusual batches": {
            "no positives": partial(with_labels, change=some_without_positives),
            "one class": partial(with_labels, change=np.zeros_like),
            "all different": partial(with_labels, change=lambda labels: np.arange(len(labels))),
            "equal rows": equal_rows,
            "prime N": prime,
            "zero row": zero_row,
            **{f"rows × {show(f)}": partial(scaled, factor=f) for f in (1e4, 1e18, 1e30)},
        },
        "Training": {
            "chunks": chunks,
            "soft targets": soft_targets,
            "two processes": partial(two_processes, names=names),
            "equal bits": equal_bits,
            "saved": partial(memory, measure=saved_bytes),
            "held": partial(memory, measure=held_bytes),
            "2 N": growth,
        },
    }


@dataclass
class Notes:
    """What failed, by library and check."""

    failures: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, loss: Loss, column: str, measured: str) -> str:
        """Return the text of the cell."""
        place = loss.library, column
        self.failures.setdefault(place, []).append(f"{loss.name} ({measured})")
        return f"fails ({list(self.failures).index(place) + 1})"

    def text(self) -> str:
        lines = []
        for number, ((library, column), parts) in enumerate(self.failures.items(), 1):
            cause = CAUSES.get((library, column), "")
            what = f"{library} {version(library)}, {column}: {', '.join(parts)}."
            lines.append(f"{number}. {what} {cause}".strip())
        return "## Notes\n\n" + ("\n".join(lines) or "Nothing failed.")


def key(loss: Loss) -> str:
    return f"{loss.library}: {loss.name}"


def version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def cell(loss: Loss, column: str, check: Check, notes: Notes) -> str:
    if column in loss.without:
        return MISSING
    try:
        return check(loss)
    except Failure as failure:
        return notes.add(loss, column, str(failure))
    except Exception as error:  # a library may raise anything
        traceback.print_exc()
        return notes.add(loss, column, type(error).__name__)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(losses: list[Loss]) -> str:
    """Run the checks and return the page."""
    installed = [loss for loss in losses if version(loss.library)]
    libraries = dict.fromkeys(["scs-supcon", "torch", "numpy", *(x.library for x in losses)])
    versions = "; ".join(f"{name} {version(name) or 'not installed'}" for name in libraries)
    parts = [INTRODUCTION, f"Python {platform.python_version()}; {versions}."]
    notes = Notes()
    names = tuple(key(loss) for loss in installed if "two processes" not in loss.without)
    for title, columns in tables(names).items():
        rows = []
        for loss in installed:
            cells = [cell(loss, column, check, notes) for column, check in columns.items()]
            rows.append([loss.library, loss.name, *cells])
            print(title, *rows[-1], sep=" | ", file=sys.stderr, flush=True)
        parts += [f"## {title}", TEXTS[title], table(["library", "loss", *columns], rows)]
    return "\n\n".join(part.strip() for part in [*parts, notes.text(), CONVENTIONS]) + "\n"


def quiet() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # of libraries, and of parameters that never change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", help="check losses whose library or name contains this text")
    parser.add_argument("--out", type=Path, help=f"default: {OUT.name}, unless --only is given")
    arguments = parser.parse_args()
    quiet()
    start = time.perf_counter()
    text = page([loss for loss in LOSSES if (arguments.only or "") in key(loss)])
    out = arguments.out or (None if arguments.only else OUT)
    if out is None:
        print(text)
    else:
        out.write_text(text)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
