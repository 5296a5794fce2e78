"""`scs slurm`: run another command as an array of SLURM jobs."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_text

# Commands that divide their work among processes, or that resume.
COMMANDS = ("train", "compare", "reproduce", "tune", "embed")
SHARED = ("compare", "reproduce", "tune", "embed")

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=scs-{command}
#SBATCH --array=1-{tasks}
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
#SBATCH --output={log}
{options}
# Before the time limit and on preemption, SLURM sends SIGTERM: the command saves its run and ends
# with code 143 or 130, and the job is queued again and resumes. So does, three times, a job whose
# process was killed (137).
cd {folder} || exit 1
{python} -m scs_supcon {arguments} &
child=$!
trap 'kill -TERM $child' TERM
wait $child
code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
killed=$([ $code -eq 137 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 3 ] && echo yes)
if [ $code -eq 143 ] || [ $code -eq 130 ] || [ "$killed" ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit $code
"""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def slurm(
    context: typer.Context,
    command: Annotated[
        str, typer.Argument(help=f"The command to run: {', '.join(COMMANDS)}, then its options.")
    ],
    tasks: Annotated[
        int,
        typer.Option(
            min=1, help="Number of jobs that share the work of compare, reproduce, tune or embed."
        ),
    ] = 1,
    sbatch: Annotated[
        str, typer.Option(help="Options of sbatch, such as '--partition=gpu --time=4:00:00'.")
    ] = "",
    script: Annotated[Path, typer.Option(help="Where to write the script.")] = Path("scs-slurm.sh"),
    no_submit: Annotated[
        bool, typer.Option("--no-submit", help="Write the script, but do not submit it.")
    ] = False,
) -> None:
    """Write a SLURM script that runs a command in an array of jobs, and submit it.

    Every job runs the same command. The jobs of a comparison or a search divide the work by the
    locks in their shared folder, which must be on a file system that all nodes see and whose locks
    work across nodes. A job that is preempted, reaches its time limit or loses its node is queued
    again and resumes. Give the options of this command before the other command:

        scs slurm --tasks 8 --sbatch '--gres=gpu:1' compare ./birds --methods all --folds 5
        scs slurm --sbatch '--time=4:00:00' train ./birds --out runs/birds
    """
    if command not in COMMANDS:
        raise UserError(f"scs slurm cannot run {command!r}: it runs {', '.join(COMMANDS)}")
    _submit_array([command, *context.args], tasks, shlex.split(sbatch), script, not no_submit)


def submit_this(command: str, arguments: Sequence[str], tasks: int) -> None:
    """Submit a command that was given with --slurm, without that option."""
    kept = list(arguments)
    for position, word in enumerate(arguments):
        if word == "--slurm":
            del kept[position : position + 2]
        elif word.startswith("--slurm="):
            del kept[position]
    _submit_array([command, *kept], tasks, (), Path("scs-slurm.sh"), True)


def _submit_array(
    arguments: Sequence[str], tasks: int, options: Sequence[str], script: Path, submit: bool
) -> None:
    command = arguments[0]
    if tasks > 1 and command not in SHARED:
        raise UserError(f"--tasks {tasks}: only {', '.join(SHARED)} share their work; use 1")
    if tasks > 1 and command == "embed" and not any(a.startswith("--parts") for a in arguments):
        raise UserError(
            "the jobs of embed divide the work by a folder of parts: add --parts FOLDER"
        )
    write_text(script, slurm_script(arguments, tasks, options, script.with_suffix("")))
    echo(f"wrote {script}")
    if submit:
        echo(_submit(script))


def slurm_script(
    arguments: Sequence[str], tasks: int, sbatch_options: Sequence[str], log: Path
) -> str:
    """Return the script of an array of jobs that run `scs` with these arguments.

    Raises:
        UserError: An option of sbatch does not begin with a dash, or has a line break.
    """
    for option in sbatch_options:
        if not option.startswith("-") or "\n" in option:
            raise UserError(f"--sbatch: {option!r} is not an option; write '--name=value'")
    return _SCRIPT.format(
        command=arguments[0],
        tasks=tasks,
        log=f"{log}-%A_%a.log",
        options="".join(f"#SBATCH {option}\n" for option in sbatch_options),
        folder=shlex.quote(str(Path.cwd())),
        python=shlex.quote(sys.executable),
        arguments=shlex.join(arguments),
    )


def _submit(script: Path) -> str:
    try:
        result = subprocess.run(
            ["sbatch", str(script)], capture_output=True, text=True, check=True, timeout=60
        )
    except FileNotFoundError as error:
        raise UserError(
            f"sbatch was not found: run `sbatch {script}` on a machine of the cluster"
        ) from error
    except subprocess.CalledProcessError as error:
        raise UserError(f"sbatch rejected {script}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise UserError("sbatch does not answer: is the SLURM controller running?") from error
    return result.stdout.strip()
