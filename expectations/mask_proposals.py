"""Propose rules for columns that look like personal data and that no rule mentions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.etl.changes.masks import KEYED_KINDS, Mask, key_refusal
from sluice.etl.changes.rules import ColumnRule, ColumnRuleError, RouteError, RowRuleError
from sluice.etl.settings import Settings
from sluice.expectations.dataset import Dataset, quoted
from sluice.expectations.personal_data import kind_by_name, kind_by_values
from sluice.tidb.column_types import FLAG_NOT_NULL
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import exactly, full_name

__all__ = [
    "MaskProposal",
    "PersonalColumn",
    "ReadSample",
    "downstream_sample",
    "propose_masks",
    "rules_text",
]

ReadSample = Callable[[Table, Sequence[str]], Mapping[str, Sequence[str]]]
"""Returns values of some text columns of a table, by upstream name; {} if there are none."""

_SAMPLE_ROWS = 200

_BY_KIND = {
    "email": Mask("email"),
    "phone": Mask("digits"),
    "name": Mask("hash"),
    "address": Mask("hash"),
    "birth": Mask("null"),
    "iban": Mask("partial", "4"),
    "ssn": Mask("hash"),
    "passport": Mask("hash"),
    "ip": Mask("hash"),
}
_FALLBACKS = (
    Mask("partial", "0"),
    Mask("null"),
    Mask("constant", "1970-01-01"),
    Mask("constant", "0"),
)
_AS_NULL = (Mask("null"),)
"""A mask that needs no key, and that unique keys take."""
_FLAG_TYPES = frozenset({1, 16})
"""TINYINT and BIT: a flag such as `mobile`, not the datum."""


@dataclass(frozen=True, slots=True)
class PersonalColumn:
    """A column that looks like personal data.

    `kind`: one of `personal_data.KINDS`; `why`: in words, without a value; `mask`: None if no mask
    fits its type; `refusal`: why the column can't be masked or left out, "" if it can.
    """

    name: str
    kind: str
    why: str
    mask: Mask | None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class MaskProposal:
    """The columns of a table (full upstream name) that look like personal data."""

    table: str
    columns: tuple[PersonalColumn, ...]


def propose_masks(
    settings: Settings, tables: Sequence[Table], read_sample: ReadSample
) -> Iterator[MaskProposal]:
    """Yield a proposal for each replicated table with such columns, in the order of `tables`.

    `tables`: by their upstream names. `read_sample` is called for text columns whose name says
    nothing; what it raises is passed on.
    """
    filters = settings.filters
    for table in tables:
        if not table.is_base_table or not filters.wants_table(table.schema_name, table.name):
            continue
        found = tuple(_of_table(settings, table, read_sample))
        if found:
            yield MaskProposal(table.full_name, found)


def downstream_sample(settings: Settings, place: Dataset) -> ReadSample:
    """Return the function that reads the first rows of tables downstream. It raises SluiceError."""
    there = frozenset(place.tables())

    def read(table: Table, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
        target = settings.routes.target(table.schema_name, table.name)
        name = full_name(target.schema, target.table)
        if name not in there:
            return {}
        held = {column.name for column in place.shape(name).columns}
        shaped = {c.source_name: c.name for c in settings.filters.narrowed(table).columns}
        known = {column: shaped[column] for column in columns if shaped.get(column) in held}
        if not known:
            return {}
        select = ", ".join(map(quoted, known.values()))
        rows = place.ask(f"SELECT {select} FROM {place.table(name)} LIMIT {_SAMPLE_ROWS}")
        return {
            column: [row[at] for row in rows if isinstance(row[at], str)]
            for at, column in enumerate(known)
        }

    return read


def _of_table(
    settings: Settings, table: Table, read_sample: ReadSample
) -> Iterator[PersonalColumn]:
    rules = settings.filters.column_rules(table.schema_name, table.name)
    columns = [
        column
        for column in table.columns
        if column.public and not column.hidden and not _is_mentioned(column, rules)
    ]
    by_name = {
        column.name: kind
        for column in columns
        if column.tp not in _FLAG_TYPES and (kind := kind_by_name(column.name, table.name))
    }
    others = [c.name for c in columns if c.kind == "text" and c.name not in by_name]
    sample = read_sample(table, others) if others else {}
    for column in columns:
        kind, why = by_name.get(column.name, ""), "by its name"
        if not kind:
            kind, share = kind_by_values(sample.get(column.name, ()))
            why = f"by the shape of {share:.0%} of {len(sample.get(column.name, ()))} values"
        if kind:
            mask, refusal = _mask_for(settings, table, column, kind)
            yield PersonalColumn(column.name, kind, why, mask, refusal)


def _is_mentioned(column: Column, rules: Sequence[ColumnRule]) -> bool:
    return any(
        folded(column.name) in map(folded, rule.keep)
        or rule.leaves_out(column.name)
        or rule.new_name(column.name)
        or rule.mask_of(column.name)
        for rule in rules
    )


def _mask_for(
    settings: Settings, table: Table, column: Column, kind: str
) -> tuple[Mask | None, str]:
    """Return the first mask that the column takes, and why it can't be hidden, "" if it can.

    None: it is left out.
    """
    parts = [
        chars
        for index in table.indexes
        for name, _, chars in (index.columns if index.unique else ())
        if folded(name) == folded(column.name)
    ]
    # more columns of a unique key can be hashed than have the form of their kind
    masks = (_BY_KIND[kind], *((Mask("hash"),) if parts else ()), *_FALLBACKS)
    fitting = [mask for mask in masks if not mask.misfit(column)]
    first = fitting[0] if fitting else None
    refusal = _refusal(settings, table, column, ())
    if not refusal or not parts or _refusal(settings, _nullable(table, column), column, _AS_NULL):
        return first, refusal
    for mask in fitting:
        if not any(key_refusal(mask, column, chars) for chars in parts):
            return mask, ""
    return first, refusal


def _nullable(table: Table, column: Column) -> Table:
    """Return the table with a column that may be NULL."""
    found = replace(column, flag=column.flag & ~FLAG_NOT_NULL)
    return replace(table, columns=tuple(found if one is column else one for one in table.columns))


def _refusal(settings: Settings, table: Table, column: Column, masks: tuple[Mask, ...]) -> str:
    """Return why a column can't be masked so, or without masks be left out; "" if it can.

    What needs a column for its values needs it to be there, too.
    """
    leave_out = () if masks else (column.name,)
    masked = tuple((column.name, mask) for mask in masks)
    rule = ColumnRule((exactly(table.full_name),), leave_out, (), "it", masks=masked)
    try:
        if settings.routes.target(table.schema_name, table.name).is_merged:
            return f"{table.full_name} is merged with other tables"
        filters = replace(settings.filters, columns=(*settings.filters.columns, rule))
        filters.row_selection(table)
        filters.narrowed(table)
    except (ColumnRuleError, RouteError, RowRuleError) as error:
        return " ".join(str(error).removeprefix("it leaves out ").split())
    return "it is generated" if column.generated else ""


def rules_text(settings: Settings, proposals: Sequence[MaskProposal]) -> str:
    """Return the proposals as sections of a settings file.

    A section [filter.mask] comes with them if the settings mask nothing yet.
    """
    parts, kinds = [], set()
    for proposal in proposals:
        possible = [column for column in proposal.columns if not column.refusal]
        masked = [column for column in possible if column.mask is not None]
        left_out = [column for column in possible if column not in masked]
        lines = [f"# {proposal.table}"]
        lines += [f"# {column.name}: {column.kind}, {column.why}" for column in possible]
        lines += [
            f"# {column.name}: {column.kind}, {column.why}, can't be hidden: {column.refusal}"
            for column in proposal.columns
            if column.refusal
        ]
        if possible:
            lines += ["[[filter.columns]]", f"tables = [{json.dumps(exactly(proposal.table))}]"]
        if left_out:
            lines.append(f"leave-out = [{', '.join(json.dumps(c.name) for c in left_out)}]")
        if masked:
            pairs = (f"{_key(c.name)} = {_value(c.mask)}" for c in masked if c.mask is not None)
            lines.append(f"mask = {{ {', '.join(pairs)} }}")
        kinds |= {column.mask.kind for column in masked if column.mask is not None}
        parts.append("\n".join(lines))
    if kinds & KEYED_KINDS and settings.filters.masking_rule is None:
        parts.append('[filter.mask]\nkey-env = "SLUICE_MASK_KEY"  # openssl rand -hex 32')
    return "\n\n".join(parts)


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").isalnum() else json.dumps(name)


def _value(mask: Mask) -> str:
    if mask.kind == "partial":
        return f"{{ partial = {mask.argument} }}"
    if mask.kind == "constant":
        return f"{{ constant = {json.dumps(mask.argument)} }}"
    return json.dumps(mask.kind)
