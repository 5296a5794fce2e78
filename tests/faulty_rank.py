"""`scs` for torchrun, with a fault in one process: FAULT is "kind:rank:step".

"kill" ends the process before that step, in the first attempt only. "sleep" makes it fall behind.
"full" makes its disk full from that step on.
"""

import errno
import os
import signal
import sys
import time
from typing import Any

from scs_supcon.__main__ import main
from scs_supcon.training import loop

KIND, RANK, STEP = os.environ.get("FAULT", "none:0:0").split(":")


def disk_full(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and (arguments[2] or 0) & os.O_CREAT and "run" in str(arguments[0]):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))


def with_fault(train_step: Any) -> Any:
    def step(fabric: Any, stage: Any, batch: Any, position: Any, *others: Any) -> Any:
        chosen = os.environ["RANK"] == RANK and position.global_step == int(STEP)
        if chosen and KIND == "kill" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if chosen and KIND == "sleep":
            time.sleep(600)
        if chosen and KIND == "full":
            sys.addaudithook(disk_full)
        return train_step(fabric, stage, batch, position, *others)

    return step


loop._train_step = with_fault(loop._train_step)
main()
