"""Random rules for a history that is grown: conditions, columns, masks, names of tables.

Rules are about tables by their names, and tables change names and columns. So rules are drawn from
what the tables of a family had at any time: those that a rename or an exchange connects. Most rules
at which a DDL would stop are drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from tests.judge.conditions import invented
from tests.judge.invented_tidb import Name, Upstream
from tests.judge.kept_rows import Keeping
from tests.judge.kinds import Kind
from tests.judge.rules import OPERATIONS, ColumnRule, RowRule, Rules, UndecidedError
from tests.judge.shapes import invented_added, invented_key_mask, invented_mask
from tests.judge.tables import Table

_TRIES = 12
_REFUSED = 0.02
"""How likely rules stay at which a DDL has to stop."""
_NEW_NAMES = ("renamed", "re named", "re`named", "order")


def invent_rules(upstream: Upstream, rng: random.Random) -> Rules:
    """Return rules for the history, of each kind some or none."""
    rules = Rules()
    families = _families(upstream)
    for family in families:
        for draw, likely in ((_row_rule, 0.55), (_column_rule, 0.6), (_column_rule, 0.25)):
            if rng.random() < likely:
                _add(rules, draw, family, upstream, rng)
    merged = {upstream.upstream_name(table) for table in upstream.merged}
    names = sorted({name for family in families for name in family.names} - merged)
    for number, name in enumerate(names):
        if rng.random() < 0.25:
            schema = rng.choice((name[0], "archive", "ar.chive"))
            rules.targets[name] = schema, f"r{number} {name[1]}"[:60].rstrip()
    for family in families:
        if rng.random() < 0.4:
            _add(rules, _keeping_rule, family, upstream, rng)
    return rules


class _Family:
    """Upstream names that tables had, and those tables at all times."""

    def __init__(self, names: set[Name]) -> None:
        self.names = names
        self.tables: list[Table] = []


def _families(upstream: Upstream) -> list[_Family]:
    found: list[_Family] = []
    for each in upstream.alterations:
        names = {each.after.name} | ({each.exchanged} if each.exchanged else set())
        names |= {each.before.name} if each.before else set()
        joined = _Family(names)
        for family in [family for family in found if family.names & names]:
            found.remove(family)
            joined.names |= family.names
            joined.tables += family.tables
        joined.tables.append(each.after.table)
        found.append(joined)
    merged = {upstream.upstream_name(table) for table in upstream.merged}
    if not merged:
        return found
    parts = [family for family in found if family.names & merged]
    together = _Family(set().union(*(family.names for family in parts)))
    together.tables = [table for family in parts for table in family.tables]
    return [*(family for family in found if family not in parts), together]


def _add(
    rules: Rules, draw: object, family: _Family, upstream: Upstream, rng: random.Random
) -> None:
    for _ in range(_TRIES):
        made = draw(family, upstream, rng)  # type: ignore[operator] # one of two functions
        if made is None:
            continue
        tried = replace(rules, rows=list(rules.rows), columns=list(rules.columns))
        (tried.rows if isinstance(made, RowRule) else tried.columns).append(made)
        if len(tried.columns) > 1 and _contradict(tried):
            continue
        if isinstance(made, ColumnRule) and made.keeping and _depends_on_changes(tried, made):
            continue
        try:
            stop = tried.refusal(upstream)
        except UndecidedError:
            continue
        if stop is None or rng.random() < _REFUSED:
            rules.rows, rules.columns = tried.rows, tried.columns
            return


def _contradict(rules: Rules) -> bool:
    """Return whether two rules name a column of one table: what counts then is another question."""
    *others, last = rules.columns
    mine = _columns_named(last)
    return any(
        last.tables & other.tables and (mine & _columns_named(other) or (last.keep and other.keep))
        for other in others
    )


def _depends_on_changes(rules: Rules, made: ColumnRule) -> bool:
    """Return whether changes of the tables are left out: what a version is isn't defined then."""
    return any(rule.is_of_changes and rule.tables & made.tables for rule in rules.rows)


def _columns_named(rule: ColumnRule) -> set[str]:
    named = {*rule.leave_out, *rule.rename, *rule.mask, *rule.add, *rule.rename.values()}
    return {name.lower() for name in named}


def _columns(family: _Family) -> list[tuple[str, Kind]]:
    """Return the columns that the tables had at any time, those of all times more often."""
    every = [{(c.name, c.kind) for c in table.columns} for table in family.tables]
    common = sorted(set.intersection(*every), key=str)
    return common * 4 + sorted(set.union(*every), key=str)


def _row_rule(family: _Family, upstream: Upstream, rng: random.Random) -> RowRule | None:
    of_changes = _is_plain(family, upstream) and rng.random() < 0.4
    condition = invented(rng, _columns(family), upstream.new_collation, with_sides=of_changes)
    operations = OPERATIONS
    if of_changes and rng.random() < 0.7:
        operations = tuple(rng.sample(OPERATIONS, rng.randint(1, 2)))
    return RowRule(frozenset(family.names), condition, operations)


def _is_plain(family: _Family, upstream: Upstream) -> bool:
    """Return whether it is one table with a key, whose columns and keys were never altered.

    Which rows changes leave out is then the model's to say.
    """
    first = family.tables[0]
    merged: Collection[int] = [table.id for table in upstream.merged]
    return (
        all(table.id == first.id for table in family.tables)
        and first.id not in merged
        and first.handle_kind != "heap"
        and all(
            not table.partitions
            and [(c.id, c.name, c.kind) for c in table.columns]
            == [(c.id, c.name, c.kind) for c in first.columns]
            and not any(i.unique and not i.primary for i in table.indexes)
            for table in family.tables
        )
    )


def _keeping_rule(family: _Family, upstream: Upstream, rng: random.Random) -> ColumnRule | None:
    first = family.tables[0]
    if not _is_plain(family, upstream) or first.primary is None:
        return None
    keys = [first.column(name).kind for name in first.primary.columns]
    known = (k.family == "int" or (k.is_text and k.collate.endswith("_bin")) for k in keys)
    if not all(known) or first.primary.prefix > 0:
        return None
    return ColumnRule(frozenset(family.names), keeping=Keeping(rng.choice(("", "", "gone at"))))


def _column_rule(family: _Family, upstream: Upstream, rng: random.Random) -> ColumnRule | None:
    tables = frozenset(family.names)
    columns = _columns(family)
    keys = {name for t in family.tables for i in t.indexes if i.unique for name in i.columns}
    keys |= {table.by for table in family.tables}
    free = [each for each in columns if each[0] not in keys]
    beside = keys - {name for t in family.tables if t.primary for name in t.primary.columns}
    of_keys = [each for each in columns if each[0] in beside]
    if of_keys and rng.random() < 0.25:
        name, kind = rng.choice(of_keys)
        return ColumnRule(tables, mask={name: invented_key_mask(rng, kind)})
    how = rng.random()
    if how < 0.15:
        added = {rng.choice(("added", "ad ded", "zz")): invented_added(rng, columns)}
        return ColumnRule(tables, add=added)
    if not free:
        return None
    if how < 0.3:
        kept = {name for name, _ in columns if name in keys or rng.random() < 0.7}
        return ColumnRule(tables, keep=tuple(sorted(kept)))
    some = dict(rng.sample(free, min(len(free), rng.randint(1, 3))))
    leave_out, rename, mask = [], {}, {}
    for number, (name, kind) in enumerate(some.items()):
        what = rng.random()
        if what < 0.3:
            leave_out.append(name)
        elif what < 0.45:
            rename[name] = rng.choice(_NEW_NAMES) + str(number or "")
        else:
            made = invented_mask(rng, kind)
            if made is not None:
                mask[name] = made
                if rng.random() < 0.2:
                    rename[name] = rng.choice(_NEW_NAMES) + str(number or "")
    add = {"added": invented_added(rng, columns)} if rng.random() < 0.3 else {}
    if not (leave_out or rename or mask or add):
        return None
    return ColumnRule(tables, tuple(leave_out), (), rename, mask, add)
