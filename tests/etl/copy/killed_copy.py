"""A bootstrap that ends itself by SIGKILL before the n-th thing that it sends downstream or keeps in its ledger:

python -m tests.etl.copy.killed_copy PORT FOLDER DUMP N
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from etl.downstream.mysql import MySQLSession
from etl.settings import Downstream
from relay.storage import LocalStorage
from tests.etl.copy.copying import BANK_ONLY, bootstrap, settings_of


class Server:
    def __init__(self, port: int) -> None:
        self.downstream = Downstream(host="127.0.0.1", port=port, user="root")


def main(port: int, folder: Path, dump: Path, at: int) -> None:
    steps = itertools.count(1)
    settings: Any = settings_of(Server(port), folder, BANK_ONLY)  # type: ignore[arg-type]

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def before(self: Any, *args: Any, **options: Any) -> Any:
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args, **options)

        setattr(kind, name, before)

    counted(MySQLSession, "_run")
    counted(LocalStorage, "create")
    counted(LocalStorage, "replace")
    bootstrap(settings, dump)
    print(next(steps))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
