"""Name the rights that writing needs, and find those that a user lacks by SHOW GRANTS."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.etl.changes import server_errors
from sluice.etl.downstream._connection import DownstreamError, RunQuery

TABLE_RIGHTS = (
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "CREATE",
    "DROP",
    "ALTER",
    "INDEX",
    "REFERENCES",
    "CREATE TEMPORARY TABLES",
    "CREATE VIEW",
    "SHOW VIEW",
)
"""Rights on every replicated database, and on the one for dropped tables.

On the checkpoint's the first four of them, and CREATE unless it is there.
"""
PROCESS_RIGHT = "PROCESS"
"""A right on ``*.*``: it shows which table is which after names were swapped. Not in TiDB."""
_CHECKPOINT_RIGHTS = TABLE_RIGHTS[:4]
_GRANT = re.compile(
    r"GRANT (?P<rights>.+?) ON (?:TABLE"
    r" )?(?P<place>\*\.\*|(?:`(?:[^`]|``)*`|'[^']*'|\"[^\"]*\"|[\w%$]+)\.\*) TO ",
    re.IGNORECASE,
)
_RIGHT = re.compile(r"([A-Z][A-Z_ ]*[A-Z])\s*(\([^)]*\))?", re.IGNORECASE)
_ALL_RIGHTS = "ALL PRIVILEGES"


@dataclass(frozen=True, slots=True)
class _Grant:
    rights: frozenset[str]
    pattern: str
    """A LIKE pattern of databases; "%" for all of them, and for what is the server's."""
    everywhere: bool


def missing_rights(grants: Iterable[str], own: tuple[str, str], *, process: bool) -> list[str]:
    """Return the needed rights that no line of SHOW GRANTS gives, as ``RIGHT on place``.

    A right on the replicated databases counts as given if it is given anywhere: which databases
    there will be is unknown. `process`: whether PROCESS is needed. `own`: the schemas of the
    checkpoint and of dropped tables.
    """
    found = [grant for line in grants if (grant := _parse(line)) is not None]
    missing = [
        f"{right} on the replicated databases"
        for right in TABLE_RIGHTS
        if not _grants_right(found, right, None)
    ]
    for schema, rights in zip(own, (_CHECKPOINT_RIGHTS, TABLE_RIGHTS[:7]), strict=True):
        missing += [
            f"{right} on {schema}"
            for right in rights
            if _grants_right(found, right, None) and not _grants_right(found, right, schema)
        ]
    if process and not any(
        grant.everywhere and grant.rights & {_ALL_RIGHTS, PROCESS_RIGHT} for grant in found
    ):
        missing.append(f"{PROCESS_RIGHT} on *.*")
    return missing


def grant_statements(
    user: str, schemas: Iterable[str], own: tuple[str, str], *, process: bool
) -> list[str]:
    """Return the statements that give `user` exactly the rights it needs on these databases.

    `user`: as ``'name'@'host'``. `own`: the schemas of the checkpoint and of dropped tables.
    `process`: whether PROCESS is needed. A grant ON *.* would reach the server's own tables of
    accounts.
    """
    checkpoint, recycle = own
    rights: dict[str, tuple[str, ...]] = dict.fromkeys(sorted(schemas), TABLE_RIGHTS)
    rights |= {checkpoint: (*_CHECKPOINT_RIGHTS, "CREATE"), recycle: TABLE_RIGHTS[:7]}
    lines = [
        f"GRANT {', '.join(names)} ON {_pattern(schema)}.* TO {user};"
        for schema, names in rights.items()
    ]
    return [*lines, f"GRANT {PROCESS_RIGHT} ON *.* TO {user};"] if process else lines


def _pattern(schema: str) -> str:
    """Return a database's name for GRANT: a backslash makes `%` and `_` ordinary characters."""
    escaped = re.sub(r"([%_\\])", r"\\\1", schema)
    return "`" + escaped.replace("`", "``") + "`"


def has_roles(grants: Iterable[str]) -> bool:
    """Return whether one of the lines grants a role, whose rights are in other lines."""
    return any(" ON " not in line.upper() for line in grants)


def _parse(line: str) -> _Grant | None:
    match = _GRANT.match(line)
    if match is None:
        return None
    rights = frozenset(
        word.upper().strip() for word, columns in _RIGHT.findall(match["rights"]) if not columns
    )
    everywhere = match["place"] == "*.*"
    name = "%" if everywhere else match["place"][:-2]
    if name[0] in "`'\"":
        name = name[1:-1].replace(name[0] * 2, name[0])
    return _Grant(rights | ({_ALL_RIGHTS} if "ALL" in rights else set()), name, everywhere)


def _grants_right(grants: Iterable[_Grant], right: str, schema: str | None) -> bool:
    return any(
        grant.rights & {_ALL_RIGHTS, right}
        and (schema is None or _matches_pattern(grant.pattern, schema))
        for grant in grants
    )


def _matches_pattern(pattern: str, name: str) -> bool:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(".*" if p == "%" else "." if p == "_" else re.escape(p[-1]) for p in parts)
    return re.fullmatch(expression, name, re.IGNORECASE | re.DOTALL) is not None


def _by_place(missing: Iterable[str]) -> str:
    """Return missing rights with each place once: ``SELECT, INSERT on s; PROCESS on *.*``."""
    found: dict[str, list[str]] = {}
    for right, _, place in (one.partition(" on ") for one in missing):
        found.setdefault(place, []).append(right)
    return "; ".join(f"{', '.join(rights)} on {place}" for place, rights in found.items())


def check_rights(query: RunQuery, own: tuple[str, str], address: str, *, process: bool) -> None:
    """Raise DownstreamError if the user lacks a right that writing needs.

    Arguments as of `missing_rights`. A server that doesn't show the rights passes.
    """
    try:
        grants = [str(line) for (line,) in query("SHOW GRANTS")]
        missing = missing_rights(grants, own, process=process)
        if missing and has_roles(grants):
            grants += [
                str(line)
                for (line,) in query(
                    f"SHOW GRANTS FOR CURRENT_USER() USING {query('SELECT CURRENT_ROLE()')[0][0]}"
                )
            ]
            missing = missing_rights(grants, own, process=process)
    except DownstreamError as error:
        if error.code in (server_errors.NOT_GRANTED, server_errors.OPTION_PREVENTS):
            return
        raise
    if missing:
        needed = grant_statements("…", ["<each replicated database>"], own, process=process)
        raise DownstreamError(
            server_errors.LACKS_PRIVILEGE,
            f"{address} lacks rights: {_by_place(missing)}. All that is needed: {' '.join(needed)}",
            "`sluice grants` prints these statements for the databases that the pipeline"
            " replicates",
        )
