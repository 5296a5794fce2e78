"""Tasks are begun once, skipped if they are finished or locked, and their failures are returned."""

import subprocess
import sys

SCRIPT = """
import threading
import time
from pathlib import Path

from scs_supcon.cluster.tasks import SharedTask, run_tasks, task_pool
from scs_supcon.errors import UserError
from scs_supcon.io.lock import Lock
from scs_supcon.progress import Display


def write(name):
    Path(name).write_text("new")
    return "written"


def fail(name):
    raise UserError("no good")


def finish_elsewhere():
    time.sleep(2)
    Path("locked").write_text("by another process")
    lock.release()


if __name__ == "__main__":
    Path("finished").write_text("before")
    lock = Lock(Path("locked.lock"))
    threading.Thread(target=finish_elsewhere).start()
    functions = {"finished": fail, "locked": fail, "open": write, "wrong": fail}
    tasks = {
        name: SharedTask(name, function, (name,), Path(name), Path(name + ".lock"))
        for name, function in functions.items()
    }
    print(run_tasks(tasks, task_pool(1), Display(quiet=True), "tasks"))
    for name in ("finished", "locked", "open"):
        print(name, Path(name).read_text(), sep=": ")
"""


def test_tasks_are_divided_by_results_and_locks(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.stdout.splitlines() == [
        "{'wrong': 'no good'}",
        "finished: before",
        "locked: by another process",
        "open: new",
    ], result.stderr
