"""A program that writes batch after batch and is killed after some of them, however slow the
machine is.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time

ON_BATCH = 'lambda *_: (print("batch", flush=True), sys.stdin.readline())'
"""What such a program calls after each batch; at the end it prints "done"."""


def ends_by_itself(argv: list[str], batches: int | None, rng: random.Random) -> bool:
    """Whether the program comes to its end.

    It isn't allowed on after the batch before it is to be killed has come: so it never ends first.
    `batches`: after so many and one it is killed; None lets it go on.
    """
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if batches is None:
                process.stdin.close()
            for number, line in enumerate(process.stdout):
                if line == "done\n":
                    return True
                if batches is not None:
                    process.stdin.write("\n")
                    process.stdin.flush()
                if number == batches:
                    time.sleep(rng.uniform(0, 0.02))
                    process.send_signal(signal.SIGKILL)
                    return False
            return False
        finally:
            process.kill()
            process.wait(60)
