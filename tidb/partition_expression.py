"""The expressions that tables are partitioned by, evaluated as TiDB does.

TiDB allows few functions there, all of them deterministic: calendar functions of DATE, DATETIME and
TIME columns, UNIX_TIMESTAMP of a TIMESTAMP, and integer arithmetic. What isn't among them is a
PartitionError, never a guess.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from sluice.errors import SluiceError
from sluice.tidb.folded import folded
from sluice.tidb.partition_bounds import string_value
from sluice.tidb.schema import Column

_TOKEN = re.compile(
    r"""\s*(?:(?P<name>`(?:[^`]|``)*`)|(?P<number>\d+(?:\.\d+)?)|(?P<text>'(?:[^']|'')*'|"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_]\w*)|(?P<sign>[-+*%(),]))"""
)
_TO_DAYS_OF_YEAR_1 = 365  # TO_DAYS('0001-01-01') is 366, Python's ordinal of that day 1


class PartitionError(SluiceError, ValueError):
    """A partition can't be determined, with the reason."""

    hint = "leave the transaction out: `sluice txn skip`, or the statement: `sluice ddl skip`"


ExpressionValue = int | Decimal | str | None


class PartitionMoment:
    """A DATE, DATETIME or TIME from its text; zero parts are allowed as in MySQL."""

    def __init__(self, text: str) -> None:
        day = re.fullmatch(
            r"(\d{4})-(\d{1,2})-(\d{1,2})(?:["
            r" T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?)?",
            text,
        )
        clock = re.fullmatch(r"(-?)(\d{1,3}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?", text)
        if day:
            self.year, self.month, self.day = int(day[1]), int(day[2]), int(day[3])
            hour, minute, second, fraction, sign = (
                day[4] or 0,
                day[5] or 0,
                day[6] or 0,
                day[7] or "",
                "",
            )
        elif clock:
            self.year = self.month = self.day = 0
            sign, hour, minute, second, fraction = (
                clock[1],
                clock[2],
                clock[3],
                clock[4],
                clock[5] or "",
            )
        else:
            raise PartitionError(f"invalid date or time {text!r}")
        self.hour, self.minute, self.second = int(hour), int(minute), int(second)
        self.microsecond = int(fraction.ljust(6, "0")) if fraction else 0
        self.sign = -1 if sign else 1

    @property
    def date(self) -> datetime.date | None:
        """Return the date; None for dates with zero parts."""
        try:
            return datetime.date(self.year, self.month, self.day)
        except ValueError:
            return None

    @property
    def seconds(self) -> int:
        """Return the seconds of the day, or of a TIME."""
        return self.sign * (self.hour * 3600 + self.minute * 60 + self.second)

    def key(self) -> tuple[int, ...]:
        """Return a key that orders as the server does."""
        if self.sign < 0:
            return 0, 0, 0, self.seconds, -self.microsecond
        return self.year, self.month, self.day, self.seconds, self.microsecond


def evaluate(expression: str, columns: Mapping[str, Column], row: Mapping[str, Any]) -> int | None:
    """Compute the value of a partition expression for one row.

    `columns` by lower-case name, `row` as decoded images. Raises PartitionError.
    """
    value = _Evaluator(expression, columns, row).result()
    if isinstance(value, Decimal):
        if value != value.to_integral_value():
            raise PartitionError(
                f"the partition expression {expression} is no whole number here: {value}"
            )
        return int(value)
    if isinstance(value, str):
        raise PartitionError(f"the partition expression {expression} gives a text")
    return value


class _Evaluator:
    def __init__(
        self, expression: str, columns: Mapping[str, Column], row: Mapping[str, Any]
    ) -> None:
        self._expression, self._columns, self._row = expression, columns, row
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(expression.rstrip()):
            match = _TOKEN.match(expression, at)
            if match is None:
                raise self._unknown(expression[at : at + 20])
            self._tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            at = match.end()
        self._at = 0

    def result(self) -> ExpressionValue:
        value = self._sum()
        if self._at < len(self._tokens):
            raise self._unknown(self._tokens[self._at][1])
        return value

    def _unknown(self, what: str) -> PartitionError:
        return PartitionError(
            f"the partition expression {self._expression} has {what!r}, which Sluice can't evaluate"
        )

    def _peek(self) -> str:
        return self._tokens[self._at][1].upper() if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> tuple[str, str]:
        if self._at >= len(self._tokens) or (wanted and self._peek() != wanted):
            raise self._unknown(self._peek() or "an open end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _sum(self) -> ExpressionValue:
        value = self._product()
        while self._peek() in ("+", "-"):
            sign = self._take()[1]
            value = _arithmetic(sign, value, self._product())
        return value

    def _product(self) -> ExpressionValue:
        value = self._unary()
        while self._peek() in ("*", "%", "DIV", "MOD"):
            sign = self._take()[1].upper()
            value = _arithmetic("%" if sign == "MOD" else sign, value, self._unary())
        return value

    def _unary(self) -> ExpressionValue:
        if self._peek() in ("-", "+"):
            sign = self._take()[1]
            return _arithmetic(sign, 0, self._unary())
        return self._atom()

    def _atom(self) -> ExpressionValue:
        kind, text = self._take()
        if text == "(":
            value = self._sum()
            self._take(")")
            return value
        if kind == "number":
            return int(text) if text.isdigit() else Decimal(text)
        if kind == "text":
            return (string_value(text) or b"").decode("utf-8", "surrogateescape")
        if kind == "word" and self._peek() == "(":
            return self._function(text.upper())
        if kind == "word" and text.upper() == "NULL":
            return None
        if kind in ("name", "word"):
            return self._column(text[1:-1].replace("``", "`") if kind == "name" else text)[1]
        raise self._unknown(text)

    def _column(self, name: str) -> tuple[Column, ExpressionValue]:
        column = self._columns.get(folded(name))
        if column is None or column.name not in self._row:
            raise PartitionError(
                f"the partition expression {self._expression} needs the column {name}, which the"
                " row doesn't hold"
            )
        return column, self._row[column.name]

    def _function(self, name: str) -> ExpressionValue:
        self._take("(")
        if name == "EXTRACT":
            unit = self._take()[1].upper()
            self._take("FROM")
            arguments = [self._argument(name)]
            name = unit
        else:
            arguments = [self._argument(name)]
            while self._peek() == ",":
                self._take()
                arguments.append(self._argument(name))
        self._take(")")
        if any(value is None for value in arguments):
            return None
        function = _FUNCTIONS.get((name, len(arguments)))
        if function is None:
            raise self._unknown(name)
        return function(*arguments)

    def _argument(self, function: str) -> ExpressionValue:
        """Parse a function's argument, and refuse TIMESTAMP columns.

        The result of a calendar function on a TIMESTAMP depends on the session that wrote the row,
        and that of UNIX_TIMESTAMP does not.
        """
        start = self._at
        value = self._sum()
        for kind, text in self._tokens[start : self._at]:
            column = (
                self._columns.get(folded(text.strip("`"))) if kind in ("name", "word") else None
            )
            if (
                column is not None
                and (column.kind == "timestamp") != (function == "UNIX_TIMESTAMP")
                and function in _OF_TIME
            ):
                raise PartitionError(
                    f"{function} of {column.name} depends on the time zone of the session that"
                    " wrote the row"
                )
        return value


def _arithmetic(sign: str, a: ExpressionValue, b: ExpressionValue) -> ExpressionValue:
    if a is None or b is None:
        return None
    if isinstance(a, str) or isinstance(b, str):
        raise PartitionError("arithmetic with texts")
    if sign in ("+", "-", "*"):
        return {"+": a + b, "-": a - b, "*": a * b}[sign]
    if b == 0:
        return None
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        raise PartitionError(f"{sign} of fractions")
    if sign == "DIV":
        return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    return (abs(a) % abs(b)) * (-1 if a < 0 else 1)


def _moment(value: ExpressionValue) -> PartitionMoment:
    return PartitionMoment(str(value))


def _day(value: ExpressionValue) -> datetime.date | None:
    return _moment(value).date


def _to_days(value: ExpressionValue) -> int | None:
    day = _day(value)
    return day.toordinal() + _TO_DAYS_OF_YEAR_1 if day else None


def _to_seconds(value: ExpressionValue) -> int | None:
    days = _to_days(value)
    return days * 86_400 + _moment(value).seconds if days is not None else None


def _datediff(a: ExpressionValue, b: ExpressionValue) -> int | None:
    first, second = _to_days(a), _to_days(b)
    return first - second if first is not None and second is not None else None


def _unix_timestamp(value: ExpressionValue) -> ExpressionValue:
    moment = _moment(value)
    day = moment.date
    if day is None:
        return 0
    seconds = (day.toordinal() - datetime.date(1970, 1, 1).toordinal()) * 86_400 + moment.seconds
    return seconds + Decimal(moment.microsecond) / 1_000_000 if moment.microsecond else seconds


def _of_day(part: Callable[[datetime.date], int]) -> Callable[[ExpressionValue], int | None]:
    def function(value: ExpressionValue) -> int | None:
        day = _day(value)
        return part(day) if day else None

    return function


_CALENDAR: dict[str, Callable[[ExpressionValue], ExpressionValue]] = {
    "YEAR": lambda v: _moment(v).year,
    "MONTH": lambda v: _moment(v).month,
    "DAY": lambda v: _moment(v).day,
    "DAYOFMONTH": lambda v: _moment(v).day,
    "QUARTER": lambda v: (_moment(v).month + 2) // 3,
    "HOUR": lambda v: _moment(v).hour,
    "MINUTE": lambda v: _moment(v).minute,
    "SECOND": lambda v: _moment(v).second,
    "MICROSECOND": lambda v: _moment(v).microsecond,
    "DAYOFWEEK": _of_day(lambda day: day.isoweekday() % 7 + 1),
    "DAYOFYEAR": _of_day(lambda day: day.timetuple().tm_yday),
    "WEEKDAY": _of_day(lambda day: day.weekday()),
    "TO_DAYS": _to_days,
    "TO_SECONDS": _to_seconds,
    "TIME_TO_SEC": lambda v: _moment(v).seconds,
    "UNIX_TIMESTAMP": _unix_timestamp,
}
_OF_TIME = {*_CALENDAR, "DATEDIFF", "EXTRACT"}
_FUNCTIONS: dict[tuple[str, int], Callable[..., ExpressionValue]] = {
    **{(name, 1): function for name, function in _CALENDAR.items()},
    ("DATEDIFF", 2): _datediff,
    ("MOD", 2): lambda a, b: _arithmetic("%", a, b),
    ("ABS", 1): lambda v: abs(v),
    ("FLOOR", 1): lambda v: math.floor(v),
    ("CEIL", 1): lambda v: math.ceil(v),
    ("CEILING", 1): lambda v: math.ceil(v),
}
