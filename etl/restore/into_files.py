"""Tables as they were at a moment, into files: Parquet, CSV or SQL, with their definitions and a manifest.

    <folder>/manifest.json                  what was asked for; of each table that is done rows, file, length, CRC-32C
    <folder>/<schema>.<table>.parquet       its rows (or .csv, .sql)
    <folder>/<schema>.<table>.schema.sql    CREATE TABLE, as a MySQL takes it

Tables are computed some at a time, and the manifest is written behind each of these portions: killed, the same command
goes on with what is left. Each table is verified: the rows written are held against a second computation.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import google_crc32c
import pyarrow as pa

from etl.asof import Fingerprint, Past, Run, fingerprint, tables_as_of
from etl.asof.output import FORMATS, Output, file_name, file_output
from etl.ddl import create_table
from etl.dialect import Dialect
from etl.restore.errors import RestoreError, VerifyError
from etl.settings import Settings
from upstream import tso
from upstream.schema import Table

__all__ = ["FilesRequest", "RestoredFile", "RestoredFiles", "check_folder", "restore_files"]

log = logging.getLogger("sluice.restore")

_FORMAT = 1
_MANIFEST = "manifest.json"
_AT_A_TIME = 50
"""So many tables are computed, and have their files open, at a time."""
_SERVER = Dialect.of("8.0.36")
_SPECIAL = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})


@dataclass(frozen=True, slots=True)
class FilesRequest:
    """Everything that was committed through `until` (TSO), of the tables that fit one of `tables` then (globs of
    ``schema.table``; () for all), as files of the format `kind` (parquet, csv, sql) in `folder`. `beside`: other files
    may be there.
    """

    until: int
    tables: tuple[str, ...]
    folder: Path
    kind: str = "parquet"
    beside: bool = False

    def asked(self) -> dict[str, Any]:
        """As the manifest has it."""
        return {"until": self.until, "tables": list(self.tables), "kind": self.kind}

    def to_json(self) -> dict[str, Any]:
        """As JSON values; `from_json` is the inverse."""
        return self.asked() | {"folder": str(self.folder), "beside": self.beside}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        return cls(**{**document, "tables": tuple(document["tables"]), "folder": Path(document["folder"])})


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """A table that is done: `file` in the folder, of so many `bytes`, with the `rows` and their `digest`."""

    name: str
    file: str
    rows: int
    bytes: int
    crc32c: int
    digest: str
    left_out: tuple[str, ...] = ()

    def is_whole(self, folder: Path) -> bool:
        """Whether the file is what was written."""
        try:
            content = (folder / self.file).read_bytes()
        except FileNotFoundError:
            return False
        return len(content) == self.bytes and google_crc32c.value(content) == self.crc32c


@dataclass(frozen=True, slots=True)
class RestoredFiles:
    """What is in the folder, and how many tables of it this run has made."""

    until: int
    folder: Path
    tables: tuple[RestoredFile, ...]
    made: int

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


def restore_files(
    settings: Settings, request: FilesRequest, *, run: Run | None = None, on_table: Callable[[str], None] = log.info
) -> RestoredFiles:
    """Have the files, or go on with them. `run`: where tables are computed, Spark unless something else is given;
    `on_table` is told of each that is done. Raises RestoreError for a folder with something else in it, VerifyError,
    AsOfError, relay errors, SparkError, OSError.
    """
    if request.kind not in FORMATS:
        raise RestoreError(f"{request.kind} is no form of files; there are {', '.join(FORMATS)}")
    done = {table.name: table for table in _begun(request) if table.is_whole(request.folder)}
    past = tables_as_of(settings, request.until, request.tables or ("*.*",), run=run)
    left = [name for name in past.tables if name not in done]
    _write_manifest(request, list(done.values()), whole=not left)
    for first in range(0, len(left), _AT_A_TIME):
        names = left[first : first + _AT_A_TIME]
        globs = [name.translate(_SPECIAL) for name in names]
        for table in _portion(tables_as_of(settings, request.until, globs, run=run), request):
            done[table.name] = table
            on_table(f"{table.name}: {table.rows:,} rows in {table.file}")
        _write_manifest(request, list(done.values()), whole=first + _AT_A_TIME >= len(left))
    return RestoredFiles(request.until, request.folder, tuple(done[name] for name in sorted(done)), len(left))


def check_folder(request: FilesRequest) -> None:
    """Raises RestoreError if the folder is somebody else's; one that isn't there yet is nobody's."""
    if request.folder.exists():
        _made_before(request)


def _begun(request: FilesRequest) -> list[RestoredFile]:
    """What a process before this one has made. Raises as `check_folder`."""
    request.folder.mkdir(parents=True, exist_ok=True)
    return _made_before(request)


def _made_before(request: FilesRequest) -> list[RestoredFile]:
    try:
        found = json.loads((request.folder / _MANIFEST).read_bytes())
    except FileNotFoundError:
        other = next((path for path in request.folder.iterdir() if not path.name.endswith(".partial")), None)
        if other is not None and not request.beside:
            raise RestoreError(
                f"{request.folder} isn't empty: there is {other.name}",
                way_out="name another folder, or say that other files may be there: --beside",
            ) from None
        return []
    except ValueError as error:
        raise RestoreError(f"{request.folder / _MANIFEST}: {error}", way_out="name another folder") from None
    if found.get("format") != _FORMAT or found.get("asked") != request.asked():
        raise RestoreError(
            f"{request.folder} holds another restore: {json.dumps(found.get('asked'))}", way_out="name another folder"
        )
    return [RestoredFile(**one | {"left_out": tuple(one["left_out"])}) for one in found["tables"]]


def _portion(past: Past, request: FilesRequest) -> Iterator[RestoredFile]:
    """Write some tables, and compare what was written."""
    written = dict.fromkeys(past.tables, Fingerprint())
    with contextlib.ExitStack() as files:
        outputs = {name: files.enter_context(output) for name, output in _outputs(past, request).items()}
        rows = files.enter_context(contextlib.closing(past.rows()))
        for name, batch in rows:
            outputs[name].write(batch)
            written[name] += fingerprint(past.tables[name].table, [batch])
    expected = past.fingerprints()
    for name, found in past.tables.items():
        if written[name] != expected[name]:
            raise VerifyError(
                f"{name}: {written[name]} were written, and {expected[name]} computed once more", way_out="begin anew"
            )
        yield _restored(request, name, found.table, written[name], found.left_out)


def _outputs(past: Past, request: FilesRequest) -> dict[str, contextlib.AbstractContextManager[Output]]:
    """A file for each table. One of a run that was killed goes: the manifest doesn't know it."""
    schemas: dict[str, pa.Schema] = past.row_schemas()
    for name in schemas:
        (request.folder / file_name(name, request.kind)).unlink(missing_ok=True)
    return {
        name: file_output(request.folder, request.kind, name, schema, past.tables[name].table)
        for name, schema in schemas.items()
    }


def _restored(
    request: FilesRequest, name: str, table: Table, found: Fingerprint, left_out: Sequence[str]
) -> RestoredFile:
    statement, warnings = create_table(table, _SERVER)
    notes = "".join(f"-- {warning}\n" for warning in warnings)
    file, path = file_name(name, request.kind), request.folder / file_name(name, "schema.sql")
    path.write_text(f"-- {table.full_name} as of {tso.text(request.until)}\n{notes}{statement};\n", encoding="utf-8")
    content = (request.folder / file).read_bytes()
    crc, digest = google_crc32c.value(content), found.to_json()["digest"]
    return RestoredFile(name, file, found.rows, len(content), crc, digest, tuple(left_out))


def _write_manifest(request: FilesRequest, done: Sequence[RestoredFile], *, whole: bool) -> None:
    document = {
        "format": _FORMAT, "asked": request.asked(), "whole": whole,
        "tables": [asdict(table) for table in sorted(done, key=lambda table: table.name)],
    }  # fmt: skip
    path = request.folder / _MANIFEST
    partial = path.with_name(f"{_MANIFEST}.partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
