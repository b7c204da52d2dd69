"""Bind an expression to a table's columns: what it reads, the form of its values, and its SQL.

Nothing here computes a value. The upstream's server and the downstream's do, each by the SQL of
`BoundValue.sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluice.etl.changes.conditions.syntax import ColumnName, ConditionError, Constant
from sluice.etl.changes.conditions.value_forms import (
    ValueForm,
    arithmetic_form,
    column_form,
    common_form,
    constant_form,
    decimal_cast_form,
    signed_cast_form,
)
from sluice.etl.changes.conditions.value_syntax import Arithmetic, Call, Cast, Value, value_columns
from sluice.etl.changes.formats.sql_text import literal, quote_name
from sluice.tidb.column_types import CHAR, FLAG_AUTO_INCREMENT
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_MAX_TEXT_CHARS = 4_294_967_295
_COMMON = ("coalesce", "ifnull")
"""Functions that give the value of one of their operands."""


class BoundValue:
    """An expression over a table's columns, which it names as the upstream does.

    Raises ConditionError for a column that isn't downstream as it is upstream, and for operands of
    which servers don't compute the same.
    """

    def __init__(self, value: Value, table: Table) -> None:
        self._value = value
        self._table = table
        self._known = {
            folded(c.source_name): c for c in table.columns if not (c.hidden or c.computed)
        }
        self.columns: tuple[Column, ...] = tuple(
            dict.fromkeys(self._column(name) for name in value_columns(value))
        )
        """The columns that the expression reads."""
        self.form: ValueForm = self._form(value)

    def sql(self, name_of: Callable[[Column], str]) -> str:
        """Return the expression as SQL; `name_of`: a column's name at the server that computes."""
        return self._sql(self._value, name_of)

    def _column(self, name: ColumnName) -> Column:
        found = self._known.get(name.name)
        if found is None or (not found.public and not found.upstream_name):
            raise ConditionError(f"{self._table.full_name} has no column {name.name}")
        why = ""
        if not found.public:
            why = "a rule leaves out: the downstream computes, and doesn't have it"
        elif found.mask:
            why = "a rule masks"
        elif found.generated:
            why = "is computed itself: write its expression"
        elif found.flag & FLAG_AUTO_INCREMENT:
            why = "is AUTO_INCREMENT, of which servers compute nothing"
        if why:
            raise ConditionError(f"it reads column {found.source_name}, which {why}")
        return found

    def _form(self, value: Value) -> ValueForm:
        match value:
            case ColumnName():
                return column_form(self._column(value))
            case Constant():
                return constant_form(value)
            case Arithmetic(sign, left, right):
                return arithmetic_form(sign, self._form(left), self._form(right))
            case Cast(inner, "CHAR"):
                return ValueForm("text", self._form(inner).chars)
            case Cast(inner, "SIGNED"):
                return signed_cast_form(self._form(inner))
            case Cast(inner, _, precision, scale):
                return decimal_cast_form(self._form(inner), precision, scale)
            case Call(function, arguments):
                return _call_form(function, arguments, [self._form(one) for one in arguments])

    def _sql(self, value: Value, name_of: Callable[[Column], str]) -> str:
        match value:
            case ColumnName():
                column = self._column(value)
                name = quote_name(name_of(column))
                # A server may pad a CHAR by its sql_mode, and refuses to store what depends on it.
                return f"rtrim({name})" if column.tp == CHAR else name
            case Constant(constant, text):
                return literal(constant) if isinstance(constant, str) else text
            case Arithmetic(sign, left, right):
                return f"({self._sql(left, name_of)} {sign} {self._sql(right, name_of)})"
            case Cast(inner, target, precision, scale):
                size = f"({precision},{scale})" if target == "DECIMAL" else ""
                return f"cast({self._sql(inner, name_of)} as {target.lower()}{size})"
            case Call(function, arguments):
                parts = [self._sql(one, name_of) for one in arguments]
                form = self._form(value)
                if function in _COMMON and form.kind == "decimal":
                    # Servers give an operand of another scale its own digits, or those of all.
                    target = f"decimal({form.width},{form.scale})"
                    parts = [
                        part if self._form(one) == form else f"cast({part} as {target})"
                        for part, one in zip(parts, arguments, strict=True)
                    ]
                return f"{function}({', '.join(parts)})"


def _call_form(function: str, arguments: Sequence[Value], forms: Sequence[ValueForm]) -> ValueForm:
    match function:
        case "concat":
            return _text(sum(form.chars for form in forms))
        case "concat_ws":
            separator, *parts = forms
            return _text(
                sum(form.chars for form in parts) + separator.chars * max(len(parts) - 1, 0)
            )
        case _ if function in _COMMON:
            return common_form(forms)
        case "date" | "year" | "month" | "day":
            if forms[0].kind not in ("date", "datetime"):
                raise ConditionError(f"{function}(…) takes a DATE or DATETIME, not {forms[0].kind}")
            return ValueForm("date") if function == "date" else ValueForm("int", 4, unsigned=False)
    if forms[0].kind != "text":
        raise ConditionError(
            f"{function}(…) takes a text, not {forms[0].kind}: write cast(… as char)"
        )
    counts = [_count(function, one) for one in arguments[1:]]
    if function == "substring":
        counts = counts[1:]
    return _text(min([forms[0].width, *counts]))


def _count(function: str, argument: Value) -> int:
    """Return a number of characters. Raises ConditionError."""
    if not isinstance(argument, Constant) or not argument.text.isdecimal():
        raise ConditionError(f"{function}(…) takes plain numbers of characters, 0 or more")
    return int(argument.text)


def _text(chars: int) -> ValueForm:
    return ValueForm("text", min(chars, _MAX_TEXT_CHARS))
