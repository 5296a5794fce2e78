"""Read the evaluation of a run; needs no torch, so that it is quick."""

from pathlib import Path

from scs_supcon.errors import UserError
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.runs.layout import check_run


def run_directory(path: Path) -> Path:
    """Return the run directory, given its path or the path of its model directory."""
    is_model = path.name == "model" and (path.parent / "recipe.toml").exists()
    return path.parent if is_model else path


def stored_evaluation(run: Path) -> Evaluation:
    """Return the evaluation that a run wrote at its end.

    Raises:
        UserError: the directory does not exist or has no evaluation, or it cannot be read.
    """
    check_run(run)
    file = run / "evaluation.json"
    if not file.exists():
        raise UserError(
            f"{run} has no evaluation.json, which a run writes at its end: finish the run, or "
            "give images to evaluate on: scs evaluate RUN DATA"
        )
    return Evaluation.read(file)
