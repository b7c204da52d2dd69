"""List a Dumpling folder by its files' names, and read the position in its `metadata`.

    metadata                                 when, and the position: a TSO
    <db>-schema-create.sql                   CREATE DATABASE
    <db>.<table>-schema.sql                  CREATE TABLE
    <db>.<view>-schema-view.sql              CREATE VIEW, beside a table that stands for it
    <db>.<sequence>-schema-sequence.sql      CREATE SEQUENCE
    <db>.<table>.<digits>.sql|csv            rows

All but `metadata` may end in ``.gz``, ``.zst`` or ``.snappy``. Names are percent-encoded where a
file name needs it, a dot always. Numbers have gaps; a table without rows has no file of rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from sluice.etl.copy.errors import CopyError, DumpError
from sluice.tidb import tso
from sluice.tidb.table_name import full_name

METADATA = "metadata"
_COMPRESSED = r"(?:\.(?:gz|gzip|zst|zstd|snappy|snz))?"
_DATA = re.compile(rf"([^.]+)\.([^.]+)\.(\d+)\.(sql|csv){_COMPRESSED}", re.DOTALL)
_SCHEMA = re.compile(rf"([^.]+)\.([^.]+)-schema(-view|-sequence)?\.sql{_COMPRESSED}", re.DOTALL)
_DATABASE = re.compile(rf"([^.]+)-schema-create\.sql{_COMPRESSED}", re.DOTALL)
_LOOKS_LIKE_DATA = re.compile(rf".*\.(?:sql|csv|parquet){_COMPRESSED}", re.DOTALL)
_POSITION = re.compile(
    r"SHOW MASTER STATUS:\s*\n(?:\s+\w+:.*\n)*?\s+Log: *(?P<log>\S*)\s*\n\s+Pos: *(?P<pos>\S*)"
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows; `form` is "sql" or "csv"."""

    name: str
    bytes: int
    number: int
    form: str


@dataclass(slots=True)
class DumpListing:
    """A folder's files, by upstream (schema, table)."""

    rows: dict[tuple[str, str], list[DataFile]] = field(default_factory=dict)
    schemas: dict[tuple[str, str], str] = field(default_factory=dict)
    databases: set[str] = field(default_factory=set)
    views: set[tuple[str, str]] = field(default_factory=set)
    sequences: set[tuple[str, str]] = field(default_factory=set)

    def tables(self) -> list[tuple[str, str]]:
        """Return the tables that have rows or a definition, sorted."""
        return sorted((self.rows.keys() | self.schemas.keys()) - self.views - self.sequences)


def list_folder(url: str, sizes: Mapping[str, int]) -> DumpListing:
    """Sort a folder's files, given with their sizes in bytes.

    Raises CopyError for a file of rows whose table is unknown, and for rows that would be copied
    twice.
    """
    found = DumpListing()
    strange = []
    for name, size in sizes.items():
        if match := _DATABASE.fullmatch(name):
            found.databases.add(unquote(match[1]))
        elif match := _SCHEMA.fullmatch(name):
            made = unquote(match[1]), unquote(match[2])
            if match[3]:
                (found.views if match[3] == "-view" else found.sequences).add(made)
            else:
                found.schemas[made] = name
        elif match := _DATA.fullmatch(name):
            if not size:
                raise CopyError(
                    f"{url}/{name} is empty, and Dumpling writes no file without rows",
                    hint="copy the file again from where Dumpling wrote it, or dump again",
                )
            file = DataFile(name, size, int(match[3]), match[4])
            found.rows.setdefault((unquote(match[1]), unquote(match[2])), []).append(file)
        elif _LOOKS_LIKE_DATA.fullmatch(name):
            strange.append(name)
    if strange:
        raise CopyError(
            f"{url}: what {', '.join(sorted(strange)[:5])}{' …' if len(strange) > 5 else ''} holds"
            " can't be inferred from the name: files of rows are called"
            " <database>.<table>.<number>.sql or .csv, as Dumpling calls them. Take what doesn't"
            " belong to the dump out of the folder"
        )
    for (schema, table), files in found.rows.items():
        files.sort(key=lambda file: (file.number, file.name))
        if len({file.form for file in files}) > 1 or len({file.number for file in files}) < len(
            files
        ):
            names = ", ".join(file.name for file in files[:6])
            raise CopyError(
                f"{url}: the rows of {full_name(schema, table)} are there twice, or from two dumps:"
                f" {names}. A dump needs a folder of its own"
            )
    return found


def read_position(url: str, names: Iterable[str], metadata: bytes | None) -> int:
    """Return the TSO as of which everything was dumped.

    Raises CopyError when `metadata`, the file's content, doesn't have it.
    """
    file = f"{url}/{METADATA}"
    if metadata is None:
        partial = any(name.startswith(METADATA) for name in names)
        raise CopyError(
            f"{url}: there is no file {METADATA}"
            + (
                ", only a part of it: Dumpling did not finish. Dump again, into an empty folder"
                if partial
                else ", so it is no Dumpling folder, or not all of it was copied"
            )
        )
    text = metadata.decode("utf-8", "replace")
    match = _POSITION.search(text)
    if match is None or "Finished dump at:" not in text:
        raise DumpError(
            file,
            len(metadata),
            "it has no position, or no end: Dumpling did not finish, or the file is cut off. Dump"
            " again",
        )
    if (
        match["log"] != "tidb-binlog"
        or not match["pos"].isdigit()
        or tso.physical_ms(int(match["pos"])) == 0
    ):
        raise DumpError(
            file,
            match.start("log"),
            f"the position {match['log']!r} {match['pos']!r} is no TSO of TiDB: was it another kind"
            " of server that was dumped?",
        )
    return int(match["pos"])
