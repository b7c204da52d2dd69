"""What column rules make of values: masks, and columns that rules add, in plain Python."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.judge import kinds
from tests.judge.kinds import Kind
from tests.judge.tables import Column, quoted

KEY_VARIABLE = "SLUICE_JUDGE_MASK_KEY"
KEY = "the judge's own key, of no other use"
_HASHED_DIGITS = 64
_FEWEST_DIGITS, _FEWEST_KEY_DIGITS = 16, 32
_DATED, _NO_DAY = ("date", "datetime", "timestamp"), "0000-00-00"
_TEXT_KIND = kinds.varchar(1000)
_INT_TYPES = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 9, "INT": 3}


@dataclass(frozen=True)
class Mask:
    """A mask: as in the settings, and what it needs and does."""

    setting: Any
    fits: Callable[[Column], bool]
    value: Callable[[Kind, Any], Any]
    keeps_apart: Callable[[Kind, int], bool] = lambda kind, chars: False
    """Whether no two values of a column become one, in so many characters, or below 0 in all."""


def _null() -> Mask:
    return Mask(
        "null", lambda column: column.nullable, lambda kind, value: None, lambda kind, chars: True
    )


def _constant(kind: Kind, rng: random.Random) -> Mask | None:
    given: Any
    match kind.family:
        case "text":
            given = rng.choice(("x", "no one"))
            made: Any = given.encode()
        case "int":
            given = made = rng.choice((0, 7))
        case "date":
            given = made = "2001-02-03"
        case "enum":
            given = made = rng.choice(kind.elems[:2])
        case _:
            return None
    return Mask(
        {"constant": given},
        lambda column: column.kind == kind,
        lambda _, value: None if value is None else made,
    )


def _partial(kept: int) -> Mask:
    def value(_: Kind, raw: Any) -> Any:
        if raw is None:
            return None
        text = raw.decode()
        hidden = len(text) - kept
        return b"*" * len(text) if hidden <= 0 else b"*" * hidden + text[hidden:].encode()

    return Mask({"partial": kept}, lambda column: column.kind.is_text, value)


def _hash(name: str) -> Mask:
    """`email`, too: no value of the judge's has an @."""

    def value(kind: Kind, raw: Any) -> Any:
        if not raw:
            return raw
        assert b"@" not in raw
        digits = hmac.new(KEY.encode(), raw, hashlib.sha256).hexdigest()
        return digits[: _digits(kind)].encode()

    def fits(column: Column) -> bool:
        return column.kind.is_text and _digits(column.kind) >= _FEWEST_DIGITS

    def keeps_apart(kind: Kind, chars: int) -> bool:
        digits = _digits(kind) if chars < 0 else min(_digits(kind), chars)
        return name == "hash" and digits >= _FEWEST_KEY_DIGITS

    return Mask(name, fits, value, keeps_apart)


def _shift(most: int) -> Mask:
    """By as many days in all rows: of the calendar from year 1 to 9999, TIMESTAMPs to 2038."""
    digest = hmac.new(KEY.encode(), b"shift-days/%d/" % most, hashlib.sha256).digest()
    days = int.from_bytes(digest[:8], "big") % (2 * most) - most
    days += days >= 0

    def value(kind: Kind, raw: Any) -> Any:
        if raw is None:
            return None
        try:
            day = datetime.date.fromisoformat(raw[:10])
        except ValueError:
            return "".join("0" if sign.isdigit() else sign for sign in raw)
        first, last = datetime.date.min, datetime.date.max
        if kind.family == "timestamp":
            first = datetime.date(1970, 1, 1 if raw[11:] >= "00:00:01" else 2)
            last = datetime.date(2038, 1, 19 if raw[11:19] <= "03:14:07" else 18)
        moved = min(max(day.toordinal() + days, first.toordinal()), last.toordinal())
        return datetime.date.fromordinal(moved).isoformat() + raw[10:]

    def fits(column: Column) -> bool:
        if column.kind.family not in _DATED or column.spelled is not None:
            return False
        return all(it is None or it.startswith(_NO_DAY) for it in (column.default, column.origin))

    return Mask({"shift-days": most}, fits, value)


def _digits(kind: Kind) -> int:
    return min(_HASHED_DIGITS, kind.flen)


def invented_mask(rng: random.Random, kind: Kind) -> Mask | None:
    """Return a mask, None if the one that was drawn is none for the type."""
    masks = [_null(), _constant(kind, rng)]
    if kind.is_text:
        masks += [_partial(rng.choice((0, 1, 4))), _hash("hash"), _hash("hash"), _hash("email")]
    if kind.family in _DATED:
        masks += [_shift(rng.choice((1, 30, 4_000)))] * 2
    return rng.choice(masks)


def invented_key_mask(rng: random.Random, kind: Kind) -> Mask:
    """Return a mask for a column of a unique key, one that keeps values apart if there is one."""
    return _hash("hash") if kind.is_text and rng.random() < 0.7 else _null()


@dataclass(frozen=True)
class Added:
    """A column that a rule adds: its expression, the columns that it reads, and its values."""

    expression: str
    reads: Mapping[str, Kind]
    kind: Kind
    value: Callable[[Mapping[str, Any]], Any]
    """By the row's values, by column name in lower case."""
    type: str = ""


def invented_added(rng: random.Random, columns: list[tuple[str, Kind]]) -> Added:
    """Return a column computed from one of these, or a constant."""
    suits = [each for each in columns if _EXPRESSIONS.get(_form(each[1]))]
    if not suits or rng.random() < 0.25:
        return Added("'eu'", {}, _TEXT_KIND, lambda row: b"eu")
    name, kind = rng.choice(suits)
    text, made, value = rng.choice(_EXPRESSIONS[_form(kind)])
    lower = name.lower()
    return Added(text.format(quoted(name)), {name: kind}, made, lambda row: value(row[lower]))


def _form(kind: Kind) -> str:
    """Return the key of `_EXPRESSIONS`, "" for what expressions don't read."""
    if kind.family == "int":
        is_plain = kind.sql.split()[0] in _INT_TYPES and "UNSIGNED" not in kind.sql
        return "int" if is_plain else ""
    if kind.family == "text":
        return "text" if kind.charset in ("utf8mb4", "ascii") else ""
    if kind.family == "decimal":
        return "decimal" if kind.sql == "DECIMAL(8,3)" else ""
    return kind.family if kind.family in ("date", "enum") else ""


def _unless_null(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else change(value)


_EXPRESSIONS: dict[str, list[tuple[str, Kind, Callable[[Any], Any]]]] = {
    "int": [
        ("{} + 1", kinds.BIGINT, _unless_null(lambda v: v + 1)),
        ("coalesce({}, 0) * 2", kinds.BIGINT, lambda v: (v or 0) * 2),
        ("concat('n', {})", _TEXT_KIND, _unless_null(lambda v: b"n%d" % v)),
    ],
    "text": [
        ("concat({}, '!')", _TEXT_KIND, _unless_null(lambda v: v + b"!")),
        ("left({}, 2)", _TEXT_KIND, _unless_null(lambda v: v.decode()[:2].encode())),
        ("ifnull({}, 'none')", _TEXT_KIND, lambda v: b"none" if v is None else v),
    ],
    "decimal": [
        ("{} + 0.5", kinds.decimal(10, 3), _unless_null(lambda v: v + Decimal("0.5"))),
        ("{} * 2", kinds.decimal(10, 3), _unless_null(lambda v: v * 2)),
    ],
    "date": [
        ("year({})", kinds.BIGINT, _unless_null(lambda v: int(v[:4]))),
        ("concat('on ', {})", _TEXT_KIND, _unless_null(lambda v: b"on " + v.encode())),
    ],
    "enum": [("concat({}, '?')", _TEXT_KIND, _unless_null(lambda v: v.encode() + b"?"))],
}
