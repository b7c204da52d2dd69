"""Write a table's partitions as SQL, from TiDB's PartitionInfo, and the change that a DDL makes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from sluice.etl.changes.formats.sql_text import quote_name, quote_text
from sluice.tidb.folded import folded
from sluice.tidb.partition_bounds import string_value
from sluice.tidb.schema import Table

_PARTITION_KINDS = {1: "RANGE", 2: "HASH", 3: "LIST", 4: "KEY"}


def plain_name(name: Any) -> str:
    """Return TiDB's case-insensitive name `{"O": original, "L": lower}` as it is written."""
    return str(name["O"]) if isinstance(name, dict) else str(name)


def partition_clause(table: Table) -> str:
    """Return `` PARTITION BY ...``, or nothing for a table without partitions."""
    info: dict[str, Any] = table.partition or {}
    kind = _PARTITION_KINDS.get(int(info.get("type") or 0))
    if kind is None or not info.get("enable", True):
        return ""
    columns = [plain_name(c) for c in info.get("columns") or ()]
    by = ", ".join(quote_name(c) for c in columns) if columns else str(info.get("expr") or "")
    if kind in ("HASH", "KEY"):
        return (
            f" PARTITION BY {kind} ({by}) PARTITIONS"
            f" {int(info.get('num') or len(info.get('definitions') or ()) or 1)}"
        )
    definitions = ", ".join(
        partition_definition(info, definition) for definition in info.get("definitions") or ()
    )
    return f" PARTITION BY {kind}{' COLUMNS' if columns else ''} ({by}) ({definitions})"


def partition_definition(info: dict[str, Any], definition: dict[str, Any]) -> str:
    """Return ``PARTITION name VALUES ...`` of one RANGE or LIST partition.

    `info`: TiDB's PartitionInfo.
    """
    columns = info.get("columns") or ()
    if _PARTITION_KINDS.get(int(info.get("type") or 0)) == "RANGE":
        bound = ", ".join(map(_literal_of, definition.get("less_than") or ()))
        values = (
            "LESS THAN"
            f" {'MAXVALUE' if bound.upper() == 'MAXVALUE' and not columns else f'({bound})'}"
        )
    else:
        rows = [", ".join(map(_literal_of, row)) for row in definition.get("in_values") or ()]
        if [row.upper() for row in rows] == ["DEFAULT"]:
            return f"PARTITION {quote_name(plain_name(definition['name']))} DEFAULT"
        values = f"IN ({', '.join(f'({row})' if len(columns) > 1 else row for row in rows)})"
    return f"PARTITION {quote_name(plain_name(definition['name']))} VALUES {values}"


def _literal_of(text: str) -> str:
    """Return a value of PartitionInfo as a literal for a session without backslash escapes."""
    value = string_value(text)
    if value is None:
        return text
    try:
        return quote_text(value.decode())
    except UnicodeDecodeError:
        return f"x'{value.hex()}'"


def partition_change(before: Table, after: Table, *, truncates: bool) -> str:
    """Return what makes `before`'s partitions `after`'s, as a clause of ALTER TABLE.

    "" if they are as they were. TiDB has spellings for it that no other server has (intervals,
    MERGE FIRST PARTITION). `truncates`: partitions with a new id and their old name are emptied.
    """
    was, is_now = partition_clause(before), partition_clause(after)
    if was == is_now and not truncates:
        return ""
    if not is_now:
        return "REMOVE PARTITIONING"
    if not was or _rule(before) != _rule(after):
        return is_now.strip()
    old, new = (
        {d["id"]: d for d in (t.partition or {}).get("definitions") or ()} for t in (before, after)
    )
    info = after.partition or {}
    gone = [d for i, d in old.items() if i not in new]
    come = [d for i, d in new.items() if i not in old]
    names = ", ".join(quote_name(plain_name(d["name"])) for d in gone)
    if truncates:
        return f"TRUNCATE PARTITION {names}" if gone else ""
    if int(info.get("type") or 0) not in (1, 3):
        count = len(new) - len(old)
        return (
            f"ADD PARTITION PARTITIONS {count}"
            if count > 0
            else f"COALESCE PARTITION {-count}"
            if count
            else ""
        )
    definitions = ", ".join(partition_definition(info, d) for d in come)
    if gone and come:
        if not _is_reorganized_in_place(before, after):
            return is_now.strip()
        return f"REORGANIZE PARTITION {names} INTO ({definitions})"
    return f"DROP PARTITION {names}" if gone else f"ADD PARTITION ({definitions})" if come else ""


def _is_reorganized_in_place(before: Table, after: Table) -> bool:
    """Return whether other servers than TiDB reorganize these partitions by REORGANIZE PARTITION.

    They want partitions that follow each other, and the same end of the last RANGE.
    """
    old, new = ((t.partition or {}).get("definitions") or [] for t in (before, after))
    ids = {d["id"] for d in new}
    gone = [n for n, d in enumerate(old) if d["id"] not in ids]
    follow = gone[-1] - gone[0] == len(gone) - 1
    return follow and old[-1].get("less_than") == new[-1].get("less_than")


def rows_of_partitions(table: Table, ids: Container[int]) -> str:
    """Return a condition for the rows that lie in these partitions.

    It is for a table that has none downstream. Raises ValueError where SQL has no such condition.
    """
    info: dict[str, Any] = table.partition or {}
    kind, columns = (
        _PARTITION_KINDS.get(int(info.get("type") or 0)),
        [plain_name(c) for c in info.get("columns") or ()],
    )
    if kind not in ("RANGE", "LIST") or len(columns) > 1:
        raise ValueError(
            f"the rows of a partition of {table.full_name} can't be selected by a condition"
        )
    value = quote_name(columns[0]) if columns else f"({info.get('expr')})"
    found, low = [], ""
    for definition in info.get("definitions") or ():
        bound = ", ".join(map(_literal_of, definition.get("less_than") or ()))
        listed = [_literal_of(row[0]) for row in definition.get("in_values") or ()]
        if definition["id"] in ids:
            found.append(
                _range_condition(value, low, bound)
                if kind == "RANGE"
                else _list_condition(value, listed, _other_values(info, ids))
            )
        low = bound
    return " OR ".join(f"({condition})" for condition in found)


def _other_values(info: Mapping[str, Any], ids: Container[int]) -> list[str]:
    """Return what the LIST partitions beside these have."""
    beside = [d for d in info.get("definitions") or () if d["id"] not in ids]
    return [_literal_of(row[0]) for d in beside for row in d.get("in_values") or ()]


def _range_condition(value: str, low: str, bound: str) -> str:
    above = f"{value} >= {low}" if low else ""
    below = f"{value} < {bound}" if bound.upper() != "MAXVALUE" else ""
    both = " AND ".join(part for part in (above, below) if part) or "TRUE"
    return both if low else f"{value} IS NULL OR {both}"  # NULL is below every value


def _list_condition(value: str, values: list[str], others: list[str]) -> str:
    """Return a LIST partition's condition; the DEFAULT one has all but the values of `others`."""
    if any(text.upper() == "DEFAULT" for text in values):
        return f"({_list_condition(value, others, [])}) IS NOT TRUE" if others else "TRUE"
    some = [text for text in values if text.upper() != "NULL"]
    parts = ([f"{value} IN ({', '.join(some)})"] if some else []) + (
        [f"{value} IS NULL"] if len(some) < len(values) else []
    )
    return " OR ".join(parts)


def exchanged_partition(before: Table, after: Table) -> str:
    """Return the quoted name of the partition to which EXCHANGE PARTITION gave another id.

    It is one of `after`. Raises ValueError.
    """
    old = {d["id"] for d in (before.partition or {}).get("definitions") or ()}
    new = [d for d in (after.partition or {}).get("definitions") or () if d["id"] not in old]
    if len(new) != 1:
        raise ValueError(
            f"{len(new)} partitions of {after.full_name} have another id afterwards, not 1"
        )
    return quote_name(plain_name(new[0]["name"]))


def _rule(table: Table) -> tuple[object, ...]:
    info: dict[str, Any] = table.partition or {}
    return (
        int(info.get("type") or 0),
        str(info.get("expr") or ""),
        [folded(plain_name(c)) for c in info.get("columns") or ()],
    )
