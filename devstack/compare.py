"""Compares a MySQL-protocol server with a snapshot of a recording.

A snapshot is a folder `snapshots/<label>` with one `schema.table.jsonl[.gz]` a table (name
percent-encoded): the first line is {"columns": [...]}, then one row a line, values as text as TiDB
prints them in UTC or {"hex": ...}. `snapshots.json` two folders up lists the tables.

Values compare by meaning: DECIMAL as numbers, FLOAT as float32, DOUBLE as float64, JSON as
documents, BIT without leading zero bytes, everything else byte for byte, and so what isn't of its
kind; rows as a multiset; column names without regard to case. Tables listed as `withheld` may be
there, and aren't compared.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from sluice.devstack.recording import RecordingError

_MAX_EXAMPLES = 3
_MAX_SHOWN_CHARS = 80


@dataclass(slots=True)
class ComparisonReport:
    """The result of a comparison.

    `tables` and `rows` (of the snapshot) compared, and one line a difference, none when all is
    equal.
    """

    tables: int = 0
    rows: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Downstream:
    """A table as the server describes it: column names as they are, kinds by lower-case name."""

    names: list[str]
    kinds: dict[str, str]


def compare(
    snapshot_dir: Path | str,
    connection: Connection[Any],
    without: frozenset[str] = frozenset(),
) -> ComparisonReport:
    """Compare every table of the snapshot with the server behind `connection` (PyMySQL).

    Columns whose lower-case names are in `without` have to be there, and aren't compared. The
    session's time zone and character set are changed for the comparison and put back. Raises
    RecordingError if a file of the snapshot is missing or unreadable; errors of the server pass
    through.
    """
    directory = Path(snapshot_dir)
    listed, withheld = _listed_tables(directory)
    report = ComparisonReport()
    schemas: dict[str, set[str]] = defaultdict(set)
    with _plain_session(connection):
        for full in sorted(listed):
            schema, table = full.split(".", 1)
            schemas[schema].add(table.lower())
            _compare_table(_snapshot_file(directory, full), full, connection, report, without)
        for schema, wanted in sorted(schemas.items()):
            report.differences += [
                f"{schema}.{name}: not in the snapshot"
                for name in _base_tables(connection, schema)
                if name.lower() not in wanted and f"{schema}.{name}" not in withheld
            ]
    return report


def _compare_table(
    path: Path,
    full: str,
    connection: Connection[Any],
    report: ComparisonReport,
    without: frozenset[str],
) -> None:
    schema, table = full.split(".", 1)
    rows = _snapshot_rows(path)
    columns = next(rows, None)
    if not isinstance(columns, dict) or "columns" not in columns:
        raise RecordingError(f"{path}, line 1: no list of columns; copy the recording again")
    names: list[str] = columns["columns"]
    downstream = _describe(connection, schema, table)
    if downstream is None:
        report.differences.append(f"{full}: missing downstream")
        return
    if sorted(n.lower() for n in names) != sorted(n.lower() for n in downstream.names):
        report.differences.append(
            f"{full}: columns {downstream.names} downstream, {names} upstream"
        )
        return
    places = [at for at, n in enumerate(names) if n.lower() not in without]
    names = [names[at] for at in places]
    meanings = [_meaning(downstream.kinds[n.lower()]) for n in names]
    missing: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        values = (row[at] for at in places)
        missing[tuple(None if v is None else m(_raw(v)) for v, m in zip(values, meanings))] += 1
    report.tables += 1
    report.rows += missing.total()
    extra: Counter[tuple[Any, ...]] = Counter()
    # As a number with exponent, a FLOAT is printed with all its digits.
    selected = [f"{_q(n)}+0e0" if downstream.kinds[n.lower()] == "float" else _q(n) for n in names]
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(f"SELECT {', '.join(selected)} FROM {_q(schema)}.{_q(table)}")
        for row in cursor:
            key = tuple(None if v is None else m(v) for v, m in zip(row, meanings))
            (missing if missing[key] > 0 else extra).update({key: -1 if missing[key] > 0 else 1})
    missing = +missing
    if missing or extra:
        report.differences.append(
            f"{full}: {missing.total()} rows missing{_examples(missing)}, {extra.total()} rows too"
            f" many{_examples(extra)}"
        )


def _examples(rows: Counter[tuple[Any, ...]]) -> str:
    shown = []
    for row in list(rows)[:_MAX_EXAMPLES]:
        texts = [
            v.decode("utf8", "backslashreplace") if isinstance(v, bytes) else str(v) for v in row
        ]
        shown.append(
            "("
            + ", ".join(
                t if len(t) < _MAX_SHOWN_CHARS else t[:_MAX_SHOWN_CHARS] + "…" for t in texts
            )
            + ")"
        )
    return f" ({'; '.join(shown)})" if shown else ""


def _listed_tables(directory: Path) -> tuple[list[str], frozenset[str]]:
    """Return the snapshot's tables, and those whose rows it keeps to itself."""
    path = directory.resolve().parent.parent / "snapshots.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        entry = next(entry for entry in entries if entry["label"] == directory.resolve().name)
        return list(entry["tables"]), frozenset(entry.get("withheld") or ())
    except StopIteration:
        raise RecordingError(f"{path}: no label {directory.name!r} in it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{path}: not readable ({error}); copy the recording again") from error


def snapshot_rows(directory: Path, full: str) -> Iterator[Any]:
    """Yield a table of the snapshot in `directory`: first {"columns": [...]}, then its rows.

    `full`: `schema.table`. Raises RecordingError.
    """
    return _snapshot_rows(_snapshot_file(directory, full))


def _snapshot_file(directory: Path, full: str) -> Path:
    plain = directory / f"{quote(full, safe='._-')}.jsonl"
    packed = plain.with_name(plain.name + ".gz")
    if not plain.exists() and not packed.exists():
        raise RecordingError(
            f"{plain}: missing (nor is there {packed.name}); copy the recording again"
        )
    return plain if plain.exists() else packed


def _snapshot_rows(path: Path) -> Iterator[Any]:
    number = 0
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8")
        ) as lines:
            for line in lines:
                yield json.loads(line)
                number += 1
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise RecordingError(
            f"{path}, after line {number}: damaged ({error}); copy the recording again"
        ) from error


@contextmanager
def _plain_session(connection: Connection[Any]) -> Iterator[None]:
    """Make the session return values as the server prints them, in UTC and UTF-8.

    Whatever the connection converts otherwise.
    """
    internals: Any = connection
    decoders, use_unicode = internals.decoders, internals.use_unicode
    internals.decoders, internals.use_unicode = {}, False
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@session.time_zone, @@session.character_set_results")
        zone, charset = cursor.fetchone()
        cursor.execute("SET time_zone = '+00:00', character_set_results = utf8mb4")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET time_zone = %s, character_set_results = %s",
                (zone.decode(), charset and charset.decode()),
            )
        internals.decoders, internals.use_unicode = decoders, use_unicode


def _describe(connection: Connection[Any], schema: str, table: str) -> _Downstream | None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (schema, table),
        )
        found = [(name.decode(), kind.decode()) for name, kind in cursor.fetchall()]
        kinds = {name.lower(): kind for name, kind in found}
        cursor.execute("SELECT VERSION()")
        (version,) = cursor.fetchone()
        if b"MariaDB" in version:
            # MariaDB keeps JSON in a text column with a check constraint of the column's name.
            cursor.execute(
                "SELECT constraint_name FROM information_schema.check_constraints WHERE"
                " constraint_schema = %s AND table_name = %s AND check_clause LIKE 'json_valid(%%'",
                (schema, table),
            )
            checked = {name.decode().lower() for (name,) in cursor.fetchall()}
            kinds.update(
                {name: "json" for name in kinds if name in checked and kinds[name] == "longtext"}
            )
    return _Downstream([name for name, _ in found], kinds) if found else None


def _base_tables(connection: Connection[Any], schema: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = %s AND table_type = 'BASE TABLE' ORDER BY table_name",
            (schema,),
        )
        return [name.decode() for (name,) in cursor.fetchall()]


def _q(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _raw(value: Any) -> bytes:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return (value if isinstance(value, str) else str(value)).encode()


def _meaning(kind: str) -> Callable[[bytes], Any]:
    """Return the conversion of a value of that kind.

    What isn't of its kind stays bytes, and differs.
    """
    meaning = _MEANING.get(kind)

    def of(raw: bytes) -> Any:
        try:
            return meaning(raw) if meaning else raw
        except (ValueError, ArithmeticError):
            return raw

    return of


def _as_decimal(raw: bytes) -> Any:
    with localcontext() as context:
        context.prec = 100  # normalize rounds to the context, DECIMAL has up to 65 digits
        return Decimal(raw.decode()).normalize() + 0


def _as_float32(raw: bytes) -> Any:
    return struct.pack("<f", float(raw) + 0.0)


def _as_float64(raw: bytes) -> Any:
    return struct.pack("<d", float(raw) + 0.0)


def _as_json(raw: bytes) -> Any:
    return json.dumps(json.loads(raw), sort_keys=True, ensure_ascii=False)


def _as_bits(raw: bytes) -> Any:
    return raw.lstrip(b"\0")


_MEANING: dict[str, Callable[[bytes], Any]] = {
    "decimal": _as_decimal,
    "float": _as_float32,
    "double": _as_float64,
    "json": _as_json,
    "bit": _as_bits,
}

__all__: Sequence[str] = ["ComparisonReport", "compare", "snapshot_rows"]
