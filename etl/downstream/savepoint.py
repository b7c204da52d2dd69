"""Keep the checkpoint of downstreams that have no table for it: the original's savepoint file.

    consistent = true
    commitTS = 470614800453074946
    schema-version = 52

    [sluice]
    cluster = "7386"
    place = "binlog-0000000000000003-20261121092320"
    offset = 1048576
    job = "reapply-1"

A Drainer reads the first three keys and no others, so it can go on from here, and Sluice from a
Drainer's file. [sluice] has up to where the downstream is known to be durable: a file and a byte
in it, or a Kafka topic and an offset. `job` is there if a job writes past windows there, and no
pipeline: no other process may go on from what it wrote.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.etl.downstream.checkpoint import Checkpoint, CheckpointError, refuse_newer

_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint; `place` is None in a Drainer's file, "" where nothing was written before."""

    checkpoint: Checkpoint
    place: str | None = None
    offset: int = 0


class SavepointFile:
    """The savepoint of one cluster at `path`.

    `job`: the job that writes there, "" for a pipeline.
    """

    def __init__(self, path: Path, cluster_id: int, job: str = "") -> None:
        self.path = path
        self._cluster_id = cluster_id
        self._job = job

    def load(self) -> Savepoint | None:
        """Read the file; None if there is none, or one without a commit timestamp.

        Raises CheckpointError and OSError.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            document = tomllib.loads(text)
            ours = document.get("sluice") or {}
            refuse_newer(f"savepoint file {self.path}", ours)
            found = Savepoint(
                Checkpoint(
                    int(document.get("commitTS") or 0), int(document.get("schema-version") or 0)
                ),
                str(ours["place"]) if "place" in ours else None,
                int(ours.get("offset") or 0),
            )
            cluster = int(ours.get("cluster") or self._cluster_id)
            job = str(ours.get("job") or "")
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"savepoint file {self.path} can't be read ({error}): it should be lines as"
                " `commitTS = 1`"
            ) from error
        if cluster != self._cluster_id:
            raise CheckpointError(
                f"savepoint file {self.path} belongs to cluster {cluster}, the upstream is"
                f" {self._cluster_id}: give every cluster a place of its own"
            )
        if job != self._job:
            raise CheckpointError(
                f"savepoint file {self.path} was written by"
                f" {f'the job {job}' if job else 'a pipeline or a Drainer'}, and"
                f" {f'the job {self._job}' if self._job else 'a pipeline'} is to write there",
                hint="give each a folder or topic, and a savepoint, of its own",
            )
        return found if found.checkpoint.commit_ts or found.place is not None else None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the savepoint against other processes until the block ends.

        Where a file system has no locks for folders nothing holds them up. Raises FileNotFoundError
        if there is no such folder.
        """
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield
        finally:
            os.close(folder)

    def save(self, checkpoint: Checkpoint, place: str | None, offset: int) -> None:
        """Replace the file, durably. Raises OSError."""
        text = (
            f"consistent = true\ncommitTS = {checkpoint.commit_ts}\nschema-version ="
            f" {checkpoint.schema_version}\n"
        )
        text += f'\n[sluice]\ncluster = "{self._cluster_id}"\n'
        if self._job:
            text += f"job = {json.dumps(self._job)}\n"
        if place is not None:
            text += f"place = {json.dumps(place, ensure_ascii=False)}\noffset = {offset}\n"
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        sync_folder(self.path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        os.fsync(descriptor)
