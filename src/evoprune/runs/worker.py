"""A worker process: `python -m evoprune.runs.worker FOLDER`, started by `executors.Local`.

It reads keys from standard input, a line each, carries the work out and answers with a line of JSON. It ends
with its driver, however that one ended. Whatever a task prints goes to standard error, and it has no input.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TextIO

from evoprune.runs.work import Bench, said

TELL_AND_END = signal.SIGUSR1
"""The signal at which a worker writes down where it is, and ends."""


def main(folder: Path) -> None:
    """Work until standard input ends."""
    # Where it was when it crashed or hung goes to standard error, too.
    faulthandler.enable(all_threads=False)
    faulthandler.register(TELL_AND_END, all_threads=False, chain=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever sent it, the driver decides
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    orders = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    keys: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders, keys), daemon=True).start()
    bench = Bench(folder)

    def answer(key: str, **what: str) -> None:
        print(json.dumps({"key": key, **what}), file=answers, flush=True)

    while True:
        key = keys.get()
        try:
            bench.carry_out(key, begun=partial(answer, key, says="begun"))
            answer(key, says="done")
        except Exception as error:
            answer(key, says="refused", why=said(error))


def _listen(orders: TextIO, keys: queue.SimpleQueue[str]) -> None:
    for line in orders:
        keys.put(line.strip())
    # The driver is gone: nobody waits for what is being evaluated, nor for what the task has started.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
