"""What is written down about a job, so that any process can go on with it:

    <relay>/jobs/<name>/spec.json          what was asked for; created exclusively, so it is who was first
    <relay>/jobs/<name>/plan.json          the chunks, numbered; made once
    <relay>/jobs/<name>/done/<chunk>.json  {"rows", "bytes"}: for people; the downstream knows for certain
    <relay>/jobs/<name>/result.json        how it ended; stays

One job of a name at a time: who finds another specification there is told whose it is.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from etl.copy.errors import CopyError
from relay.storage import Storage


class Ledger:
    """The job called `name` in a relay log's storage."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self.name = name
        self._folder = f"jobs/{name}"

    def begin(self, spec: Mapping[str, Any], token: str) -> dict[str, Any]:
        """The job's specification as it is written down: {"asked": `spec`, "token", "begun_ms"}. That of a process
        before this one if it was asked for the same. Raises CopyError if it was asked for something else.
        """
        document = {"asked": dict(spec), "token": token, "begun_ms": time.time_ns() // 1_000_000}
        with contextlib.suppress(FileExistsError):
            self._storage.create(f"{self._folder}/spec.json", _text(document))
        found = self.spec()
        assert found is not None
        if found["asked"] != document["asked"]:
            raise CopyError(
                f"the job {self.name} of {self._storage.url} was begun for something else, and isn't done:"
                f" {json.dumps(found['asked'])[:500]}. Go on with that one; or give it up: empty the downstream, remove"
                f" {self._storage.url}/{self._folder} and begin anew"
            )
        return found

    def spec(self) -> dict[str, Any] | None:
        """What `begin` wrote, None if there is no such job."""
        return self._read("spec.json")

    def plan(self) -> dict[str, Any] | None:
        """The plan, None if none was kept yet."""
        return self._read("plan.json")

    def keep_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the plan; the one that is kept, which is another process's if that was first."""
        with contextlib.suppress(FileExistsError):
            self._storage.create(f"{self._folder}/plan.json", _text(plan))
        found = self.plan()
        assert found is not None
        return found

    def note_done(self, chunk: int, rows: int, size: int) -> None:
        """A chunk is downstream."""
        self._storage.replace(f"{self._folder}/done/{chunk:06d}.json", _text({"rows": rows, "bytes": size}))

    def finish(self, result: Mapping[str, Any]) -> None:
        """The job is over."""
        self._storage.replace(f"{self._folder}/result.json", _text(result))

    def result(self) -> dict[str, Any] | None:
        """How it ended, None while it hasn't."""
        return self._read("result.json")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._storage.read(f"{self._folder}/{name}"))
        except FileNotFoundError:
            return None
        return found


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
