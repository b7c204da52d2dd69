"""Find the tables that the wanted ones' rows come from.

Tables that exchange rows form a group, through all their DDL.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.etl.history.as_of.history import SchemaChangeLog
from sluice.etl.history.as_of.versions import INEXACT_KINDS, TableVersion
from sluice.etl.history.errors import AsOfError
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action, action_name
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Table

_RENUMBERING_ACTIONS = {Action.PARTITION_TABLE, Action.REMOVE_PARTITIONING}
_CREATING_ACTIONS = {Action.CREATE_TABLE, Action.CREATE_TABLES, Action.TRUNCATE_TABLE}
_RECOVERING_ACTIONS = {Action.RECOVER_TABLE, Action.RECOVER_SCHEMA}
_KNOWN_ACTIONS = set(Action)


class StartTooLateError(AsOfError):
    """Rows from before the start are needed, and no snapshot holds them."""

    hint = (
        "ask for a moment after a snapshot that holds the table; `sluice snapshot make` makes one"
    )


class MissingValuesError(StartTooLateError):
    """The snapshot lacks values of stored generated columns.

    An older one, or the log from its beginning, may have them.
    """


@dataclass(frozen=True, slots=True)
class TableGroup:
    """Tables whose rows are computed together."""

    ids: frozenset[int]
    breaks: tuple[int, ...]
    """Commit timestamps behind which a new stretch begins: of its DDL, and moments asked for."""
    ddls: Mapping[int, DdlJob]
    """The DDL jobs by commit_ts."""
    versions: tuple[Mapping[int, TableVersion], ...]
    """The tables that exist in each stretch between breaks, by id."""
    based: frozenset[int]
    """The tables whose rows begin in the snapshot."""
    results: Mapping[int, Mapping[str, int]]
    """The ids of the wanted tables by name, for each moment."""
    until: Mapping[int, int]
    """The commit ts through which changes count, by table id: rows of later ones come to no wanted
    table.
    """

    @property
    def is_partitioned(self) -> bool:
        """Return whether rows can be dealt to several buckets."""
        return all(version.dealt_by for stretch in self.versions for version in stretch.values())

    @property
    def names(self) -> set[str]:
        """Return the names of the wanted tables."""
        return {name for tables in self.results.values() for name in tables}

    def version_at(self, moment: int, name: str) -> TableVersion:
        """Return the columns and keys of a wanted table."""
        return self.versions[self.breaks.index(moment) + 1][self.results[moment][name]]


Wanted = Mapping[int, Mapping[str, Table]]
"""Tables by moment (TSO) and name."""


def table_groups(
    history: SchemaChangeLog, wanted: Wanted, *, is_whole: bool = True
) -> tuple[list[TableGroup], dict[frozenset[str], StartTooLateError]]:
    """Return the groups that can begin where the history does, and why others can't.

    The reasons are by the names of their wanted tables. `is_whole`: no transaction is left out, so
    that each change must fit the rows. Raises AsOfError.
    """
    ids = {table.id for tables in wanted.values() for table in tables.values()}
    ddls, until = _relevant(history.ddls, ids)
    found: list[TableGroup] = []
    refused: dict[frozenset[str], StartTooLateError] = {}
    for group in _related_ids(ids, ddls, wanted):
        try:
            family = _table_group(history, group, ddls, wanted, until)
        except StartTooLateError as error:
            named = {
                name
                for tables in wanted.values()
                for name, table in tables.items()
                if table.id in group
            }
            refused[frozenset(named)] = error
            continue
        found.append(family if is_whole else _with_lenient_columns(family))
    return found, refused


def _relevant(ddls: list[DdlJob], ids: set[int]) -> tuple[list[DdlJob], dict[int, int]]:
    """Return the DDL that the tables in `ids` come from, and add their sources to `ids`.

    With it, by added id, the commit ts through which its rows belong to them.
    """
    found: list[DdlJob] = []
    until: dict[int, int] = {}
    for ddl in reversed(ddls):
        touched = ids & ddl.effect.tables.keys()
        if not touched:
            continue
        found.append(ddl)
        if ddl.type == Action.EXCHANGE_PARTITION:
            come = {
                i
                for i, table in (*ddl.effect.tables.items(), *ddl.before.items())
                if table is not None
            }
        elif ddl.type in _RENUMBERING_ACTIONS:
            come = set(ddl.effect.tables)
        else:
            continue
        until |= dict.fromkeys(come - ids, ddl.commit_ts)
        ids |= come
    return found[::-1], until


def _related_ids(ids: set[int], ddls: list[DdlJob], wanted: Wanted) -> list[frozenset[int]]:
    """Group the ids that are related to each other."""
    links = [
        ids & ddl.effect.tables.keys()
        for ddl in ddls
        if ddl.type in _RENUMBERING_ACTIONS | {Action.EXCHANGE_PARTITION}
    ]
    names: dict[str, set[int]] = {}
    for tables in wanted.values():
        for name, table in tables.items():
            names.setdefault(name, set()).add(table.id)
    found: list[set[int]] = []
    for link in [*links, *names.values(), *({i} for i in ids)]:
        joined = set(link).union(*(group for group in found if group & link))
        found = [group for group in found if not group & link] + [joined]
    return [frozenset(group) for group in found]


def _table_group(
    history: SchemaChangeLog,
    ids: frozenset[int],
    ddls: list[DdlJob],
    wanted: Wanted,
    until: Mapping[int, int],
) -> TableGroup:
    own = {ddl.commit_ts: ddl for ddl in ddls if ids & ddl.effect.tables.keys()}
    for ddl in own.values():
        if ddl.type not in _KNOWN_ACTIONS:
            names = ", ".join(
                sorted(
                    {
                        t.full_name
                        for i, t in ddl.effect.tables.items()
                        if t is not None and i in ids
                    }
                )
            )
            raise AsOfError(
                f"{ddl.title}, `{ddl.query[:200]}`, is of {action_name(ddl.type)}, which Sluice"
                f" doesn't know: what it does to the rows of {names} is unknown"
            )
    results = {
        moment: {n: t.id for n, t in tables.items() if t.id in ids}
        for moment, tables in wanted.items()
    }
    breaks = tuple(sorted(own.keys() | set(history.moments)))
    stretches = list(_versions_between_breaks(history, ids, own, breaks))
    based = frozenset(ids & history.known.keys() & stretches[0].keys())
    last = {i: until.get(i, history.until_ts) for i in ids}
    family = TableGroup(ids, breaks, own, tuple(stretches), based, results, last)
    return _with_partition_columns(_with_leaving_columns(family))


def _versions_between_breaks(
    history: SchemaChangeLog,
    ids: frozenset[int],
    ddls: Mapping[int, DdlJob],
    breaks: tuple[int, ...],
) -> Iterator[Mapping[int, TableVersion]]:
    known = {i: table for i, table in history.known.items() if i in ids}
    now = {
        i: TableVersion.from_table(table, _held_columns(history, table))
        for i, table in known.items()
    }
    gone: dict[int, TableVersion] = {}
    for table_id in ids & history.unknown.keys():
        raise StartTooLateError(_unknown(history, history.unknown[table_id]))
    ends = [*breaks, history.until_ts]
    for begin, end in itertools.pairwise([history.start_ts, *ends]):
        yield {
            i: replace(version, lenient=_is_dropping(history, i, begin, end))
            for i, version in now.items()
        }
        if (ddl := ddls.get(end)) is not None:
            _advance_tables(history, ids, ddl, now, gone)


def _held_columns(history: SchemaChangeLog, table: Table) -> frozenset[str]:
    """Return the stored generated columns that the snapshot holds.

    Raises MissingValuesError if that isn't all.
    """
    wanted = frozenset(column.name for column in table.stored_columns if column.generated)
    held = wanted & history.brings(table) if wanted else wanted
    if held < wanted and not history.may_lack:
        raise MissingValuesError(
            f"the snapshot of {tso.text(history.start_ts)} holds no values of"
            f" {', '.join(sorted(wanted - held))} of {table.full_name}"
        )
    return held


def _unknown(history: SchemaChangeLog, table: Table) -> str:
    return (
        f"{table.full_name} (id {table.id}) was there before {tso.text(history.start_ts)}, where"
        " the log begins or the snapshot was made, and no snapshot has its rows then"
    )


def _advance_tables(
    history: SchemaChangeLog,
    ids: frozenset[int],
    ddl: DdlJob,
    now: dict[int, TableVersion],
    gone: dict[int, TableVersion],
) -> None:
    after = {i: table for i, table in ddl.effect.tables.items() if i in ids}
    left = {i: now.pop(i) for i, table in after.items() if table is None and i in now}
    gone.update(left)
    for table_id, table in after.items():
        if table is None or not table.is_base_table:
            continue
        if table_id in now:
            now[table_id] = now[table_id].after(ddl, table)
        elif ddl.type in _RENUMBERING_ACTIONS and left:
            now[table_id] = next(iter(left.values())).after(ddl, table)
        elif ddl.type == Action.EXCHANGE_PARTITION:
            was = next(version for version in left.values())
            now[table_id] = was.renumbered(table)
        elif ddl.type in _RECOVERING_ACTIONS:
            if table_id not in gone:
                raise StartTooLateError(_unknown(history, table) + f"; {ddl.title} brought it back")
            now[table_id] = gone.pop(table_id).after(ddl, table)
        elif ddl.type in _CREATING_ACTIONS:
            now[table_id] = TableVersion.from_table(table)
        else:
            raise StartTooLateError(_unknown(history, table) + f"; {ddl.title} changed it")
    if ddl.type == Action.EXCHANGE_PARTITION:
        _share_labels(ddl, now)


def _share_labels(ddl: DdlJob, now: dict[int, TableVersion]) -> None:
    """Tables that exchange rows have the same columns under the same names, with whatever labels.

    What one of them doesn't hold the other doesn't afterwards.
    """
    ids = [i for i, table in ddl.effect.tables.items() if table is not None and i in now]
    shared = set.intersection(*(set(now[i].labels) for i in ids))
    labels = {}
    for name in shared:
        own = {now[i].labels[name] for i in ids}
        labels[name] = own.pop() if len(own) == 1 else f"{name} {ddl.commit_ts}"
    for i in ids:
        now[i] = replace(now[i], labels=labels)


def _is_dropping(history: SchemaChangeLog, table_id: int, begin: int, end: int) -> bool:
    """Return whether rows may take the place of others whose partition is about to be dropped."""
    return any(i == table_id and hi > begin and lo < end for lo, hi, i in history.dropping)


def _with_lenient_columns(family: TableGroup) -> TableGroup:
    versions = tuple(
        {i: replace(v, lenient=True) for i, v in stretch.items()} for stretch in family.versions
    )
    return replace(family, versions=versions)


def _with_leaving_columns(family: TableGroup) -> TableGroup:
    versions = list(family.versions)
    for number in reversed(range(len(family.breaks))):
        ddl, behind = family.ddls.get(family.breaks[number]), versions[number + 1]
        versions[number] = {
            i: (
                replace(version, leaving=_columns_leaving(version, behind[i], ddl))
                if i in behind
                else version
            )
            for i, version in versions[number].items()
        }
    return replace(family, versions=tuple(versions))


def _columns_leaving(
    version: TableVersion, later: TableVersion, ddl: DdlJob | None
) -> frozenset[str]:
    if ddl is None:
        return later.leaving
    stay = {column.id for column in pair_columns(version.table, later.table, ddl).values()}
    return frozenset(column.name for column in version.writable if column.id not in stay)


def _with_partition_columns(family: TableGroup) -> TableGroup:
    """Return the group with the columns by which rows are distributed.

    They are those of the identity that stay as they are from the first stretch to the last, in all
    tables of the group; of these the key alone, if it is among them, so that a row stays in its
    bucket whatever becomes of its other values.
    """
    shared = _shared_labels(family.versions)
    results = [
        family.version_at(moment, name)
        for moment, names in family.results.items()
        for name in names
    ]
    keys = [{version.labels[column.name] for column in version.steady_key} for version in results]
    key = set.intersection(*keys) if keys else set()
    dealt = sorted(key if key and key <= shared else shared)
    versions = tuple(
        {i: replace(v, dealt_by=_labelled(v, dealt)) for i, v in s.items()} for s in family.versions
    )
    return replace(family, versions=versions)


def _shared_labels(versions: Iterable[Mapping[int, TableVersion]]) -> set[str]:
    found: set[str] | None = None
    for stretch in versions:
        for version in stretch.values():
            labels = {
                version.labels[column.name]
                for column in version.identity
                if column.kind not in INEXACT_KINDS
            }
            found = labels if found is None else found & labels
    return found or set()


def _labelled(version: TableVersion, labels: list[str]) -> tuple[str, ...]:
    names = {label: name for name, label in version.labels.items()}
    return tuple(names[label] for label in labels)
