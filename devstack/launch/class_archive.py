"""Makes the archive of Spark's classes from which the stack's Spark starts.

It is for Java's class data sharing. `python -m sluice.devstack.launch.class_archive` makes it, and
does nothing where there is one that fits.

A Connect server loads and verifies some 17,000 classes out of 290 jars until its first job is
done, each time the same ones: 8 s of CPU time without the archive, 3 with it. Nothing depends on
it. Java looks whether it was made by the same Java, of the same jars, and goes without it
otherwise.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sluice.devstack.launch.service import LOOPBACK, StackPaths, base_environment
from sluice.devstack.launch.spark import CLASS_ARCHIVE, spark
from sluice.devstack.state import StackError, choose_ports
from sluice.etl.settings import Spark
from sluice.etl.spark import session as spark_session
from sluice.etl.spark.job import TaskFrame, stream

_TIMEOUT_S = 300.0
_NUMBERS = pa.schema([("number", pa.int64())])


def make() -> None:
    """Start a server, see which classes it loads, and archive them.

    Raises StackError, OSError or MissingProgram.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-classes-") as folder:
        listed = Path(folder) / "classes"
        command_line = _recorded(Path(folder), f"-XX:DumpLoadedClassList={listed}")
        modules = [word for word in command_line if word.startswith("--add-modules")]
        archive(
            JavaRuntime(command_line[0], command_line[command_line.index("-cp") + 1]),
            listed,
            modules,
        )


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """The JVM that an archive is for: its program, and its class path as it is given."""

    program: str
    class_path: str

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Java with the collector that Spark's JVMs have."""
        return subprocess.run(
            [self.program, *words[:-1], "-XX:+UseSerialGC", "-cp", self.class_path, words[-1]],
            env=base_environment(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip


def archive(
    java: JavaRuntime, listed: Path, modules: list[str], target: Path = CLASS_ARCHIVE
) -> None:
    """Archive the classes that a file lists. Raises StackError or OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    words = [f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={fresh}"]
    # Warnings are of classes that can't be archived: those of signed jars, and of optional
    # libraries.
    quiet = ["-Xlog:disable", "-Xlog:all=error:stderr"]
    try:
        done = java.run(*words, *quiet, *modules, "-Xshare:dump")
        if done.returncode:
            raise StackError(
                f"{shlex.join(done.args)} failed: {(done.stdout + done.stderr).strip()[-2000:]}"
            )
        _remembered(target).write_text(f"{java.program}\0{java.class_path}", encoding="utf-8")
        fresh.replace(target)  # a JVM that has the former one mapped keeps it
    finally:
        fresh.unlink(missing_ok=True)


def fits(target: Path = CLASS_ARCHIVE) -> bool:
    """Return whether there is one, and the Java that it was made for accepts it."""
    try:
        java = JavaRuntime(*_remembered(target).read_text(encoding="utf-8").split("\0"))
        done = java.run("-Xshare:on", f"-XX:SharedArchiveFile={target}", "-version")
        return target.exists() and done.returncode == 0
    except (OSError, TypeError):
        return False


def _remembered(target: Path) -> Path:
    """Return the Java and the class path that it was made for."""
    return target.with_suffix(".for")


def _recorded(home: Path, option: str) -> list[str]:
    """Return the command line of the JVM that ran a job with that option, and has ended."""
    port = choose_ports(["spark"], {})["spark"]
    part = spark(StackPaths(home, {"spark": port}, home), option)
    part.prepare()
    environment = base_environment() | dict(part.env)
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            part.argv,
            env=environment,
            cwd=part.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + _TIMEOUT_S
        while not _answers(part.probe):
            if server.poll() is not None or time.monotonic() > until:
                raise StackError(f"Spark did not start: {(home / 'log').read_text()[-2000:]}")
            time.sleep(0.1)
        command_line = (
            Path(f"/proc/{server.pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        )
        _run_sample_job(f"sc://{LOOPBACK}:{port}")
        server.terminate()  # its list is whole once it has ended
        server.wait(_TIMEOUT_S)
        return command_line
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(probe: Callable[[], None]) -> bool:
    try:
        probe()
    except Exception:
        return False
    return True


def _run_sample_job(remote: str) -> None:
    """Run a job as replication does: rows of a few tasks through Python, and back."""
    session = spark_session.attach(Spark(remote), "classes")
    try:

        def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from batches

        frame = TaskFrame(session, same, _NUMBERS, _NUMBERS).of(pa.table({"number": [1, 2, 3]}))
        list(stream(session, frame, _TIMEOUT_S))
    finally:
        spark_session.close(session)


if __name__ == "__main__":
    if not fits():
        try:
            make()
        except Exception as error:
            print(
                "Spark starts without an archive of its classes, which takes twice as long:"
                f" {error}"
            )
