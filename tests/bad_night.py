"""A pipeline an hour after somebody deleted rows of three tables in batches, and a terminal."""

import contextlib
import itertools
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil

from sluice.relay import DELETE, INSERT
from sluice.tidb import tso
from sluice.tidb.rows import encode_delete, encode_insert
from tests.etl.history.undo.undoing import state
from tests.etl.story import Story, table

ROOT = Path(__file__).resolve().parents[1]
TABLES = ["d.account", "d.ledger", "d.visit"]
ROWS, BATCH = 60, 7
PATIENCE_S = 240.0
CONFIG = """
[upstream]
pd-urls = "http://127.0.0.1:1"
sql-host = "{0.host}"
sql-port = {0.port}
sql-user = "{0.user}"
sql-password-env = "{0.password_env}"
[relay]
url = "{1}"
[downstream]
host = "{0.host}"
port = {0.port}
user = "{0.user}"
password-env = "{0.password_env}"
"""


@contextlib.contextmanager
def bad_night(mariadb, tmp_path, *, application=False):
    """A pipeline an hour after the accident; one database stands for TiDB and the replica.

    `application`: one inserts and deletes single rows of a table, before, meanwhile and after.
    """
    story = Story(mariadb, tmp_path)
    story._ts = tso.compose(time.time_ns() // 1_000_000 - 3_600_000)
    made = []
    for number, full in enumerate(TABLES, 11):
        name = full.partition(".")[2]
        one = table(number, name, "id int", "owner varchar(20)", primary="id")
        story.create(one, f"CREATE TABLE `{name}` (`id` int PRIMARY KEY, `owner` varchar(20))")
        rows = [{"id": n, "owner": f"owner {n}"} for n in range(ROWS)]
        story.insert(one, *rows)
        made.append((one, rows))
    story.apply()
    before = state(mariadb, TABLES)
    last, _ = made[0]
    rows_of_application = ({"id": n, "owner": "app"} for n in itertools.count(5_000))
    for _ in range(12 * application):
        story._ts += tso.span(60_000)
        _work(story, last, rows_of_application)
    for one, rows in made:
        for at in range(0, ROWS, BATCH):
            batch = rows[at : at + BATCH]
            story.changes(*((one, DELETE, encode_delete(one, row)) for row in batch))
            if application:
                _work(story, last, rows_of_application)
    # and life goes on
    for _ in range(12 * application):
        story._ts += tso.span(60_000)
        _work(story, last, rows_of_application)
    story.changes((last, INSERT, encode_insert(last, {"id": 1000, "owner": "new"})))
    story.apply()
    config = tmp_path / "sluice.toml"
    config.write_text(CONFIG.format(mariadb.downstream, story.url))
    yield SimpleNamespace(config=config, before=before, state=lambda: state(mariadb, TABLES))


def _work(story, one, rows):
    """Insert two rows, and delete one of them."""
    stays, goes = next(rows), next(rows)
    story.changes(*((one, INSERT, encode_insert(one, row)) for row in (stays, goes)))
    story.changes((one, DELETE, encode_delete(one, goes)))


class Terminal:
    """A shell on a pseudo-terminal: what a person types, and reads."""

    def __init__(self, config=None, cwd=ROOT):
        shell = ["bash", "--norc", "--noprofile"]
        env = os.environ | {
            "PS1": "night> ",
            "TERM": "dumb",
            **({} if config is None else {"SLUICE_CONFIG": str(config)}),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._master, slave = pty.openpty()
        subprocess.run(["stty", "cols", "250", "-echo"], stdin=slave, check=True)
        self._process = subprocess.Popen(
            shell,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)
        self._until("night> ")

    def type(self, line, *answers):
        """Return what the command said, and its exit code.

        `answers`: a prompt of the command each, and what is typed then.
        """
        end = "" if line.endswith("&") else ";"
        os.write(self._master, f"{line}{end} echo code=$?\n".encode())
        said = ""
        for prompt, answer in answers:
            said += self._until(f"{prompt}: ")
            os.write(self._master, f"{answer}\n".encode())
        said += self._until("night> ")
        code = re.findall(r"code=(\d+)", said)[-1]
        return said, int(code)

    def close(self):
        for job in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                job.kill()
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _until(self, end):
        said, deadline = "", time.monotonic() + PATIENCE_S
        while not said.endswith(end):
            assert time.monotonic() < deadline, said
            if select.select([self._master], [], [], 1.0)[0]:
                said += os.read(self._master, 65536).decode(errors="replace").replace("\r", "")
        return said


def is_repaired(night, names):
    """The rows of these tables are there again, and what came since stays."""
    now = night.state()
    assert all(night.before[name] <= now[name] for name in names)
    assert now["d.account"].total() == ROWS + 1
