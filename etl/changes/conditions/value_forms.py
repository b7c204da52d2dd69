"""Forms of computed values: what a column needs to hold every value of an expression.

A form is derived from those of the operands alone, never from rows. So a computed value always fits
its column, and servers needn't round, cut or convert it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from sluice.etl.changes.conditions.syntax import ConditionError, Constant
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column

MAX_DECIMAL_DIGITS, MAX_DECIMAL_SCALE = 65, 30
MAX_INT_DIGITS = 20
_SAFE_INT_DIGITS = 18
"""Every number of so many digits is a BIGINT, with a sign or without."""
_INT_DIGITS = {
    types.TINYINT: 3,
    types.SMALLINT: 5,
    types.MEDIUMINT: 8,
    types.INT: 10,
    types.BIGINT: MAX_INT_DIGITS,
}
_TEXT_CHARS = {
    types.TINYTEXT: 255,
    types.TEXT: 65_535,
    types.MEDIUMTEXT: 16_777_215,
    types.LONGTEXT: 4_294_967_295,
}
_DATE_CHARS, _SECOND_CHARS = 10, 19
_UNICODE = ("utf8mb4", "utf8", "utf8mb3", "ascii")
_READ_KINDS = "whole numbers, DECIMAL, text, ENUM, DATE and DATETIME"


@dataclass(frozen=True, slots=True)
class ValueForm:
    """The form of an expression's values.

    `kind`: text, int, decimal, date or datetime. `width`: the most characters of a text, or digits
    of a number; `scale`: of these, the digits behind the point, or those of a datetime's seconds.
    `unsigned`: of an int column's values; None for a number that fits both, as a literal of 1.
    """

    kind: str
    width: int = 0
    scale: int = 0
    unsigned: bool | None = None

    @property
    def whole_digits(self) -> int:
        """Return the digits of a number in front of its point."""
        return self.width - self.scale

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "decimal")

    @property
    def chars(self) -> int:
        """Return the most characters that its values have as texts."""
        match self.kind:
            case "int":
                return self.width + 1
            case "decimal":
                return self.width + len("-0.")
            case "date":
                return _DATE_CHARS
            case "datetime":
                return _SECOND_CHARS + (self.scale + 1 if self.scale else 0)
        return self.width


def column_form(column: Column) -> ValueForm:
    """Return the form of a column's values. Raises ConditionError for one that can't be read."""
    if column.flag & types.FLAG_ZEROFILL:
        raise ConditionError(f"{column.source_name} is ZEROFILL, which servers show in two ways")
    match column.kind:
        case "int":
            return ValueForm("int", _INT_DIGITS[column.tp], unsigned=column.unsigned)
        case "decimal":
            digits = column.flen if column.flen > 0 else 10
            return ValueForm("decimal", digits, max(column.decimal, 0))
        case "text" | "enum" if column.charset.lower() not in _UNICODE:
            raise ConditionError(
                f"{column.source_name} has the character set {column.charset}: only those of"
                f" {', '.join(_UNICODE)} are read"
            )
        case "text":
            widest = _TEXT_CHARS.get(column.tp, 0)
            return ValueForm("text", widest or max(column.flen, 1))
        case "enum":
            return ValueForm("text", max(map(len, column.elems), default=0))
        case "date":
            return ValueForm("date")
        case "datetime":
            return ValueForm("datetime", scale=column.fsp)
    raise ConditionError(
        f"{column.source_name} is {column.kind or 'of an unknown type'}: only {_READ_KINDS} are"
        " read"
    )


def constant_form(constant: Constant) -> ValueForm:
    """Return the form of a constant. Raises ConditionError."""
    value = constant.value
    if isinstance(value, str):
        # Servers print expressions of tables with escapes, and read them by a session's mode.
        if "\\" in value or "\0" in value:
            raise ConditionError(
                f"{constant.text}: a backslash or NUL in quotes is read in different ways by"
                " servers"
            )
        return ValueForm("text", len(value))
    if not isinstance(value, Decimal) or constant.is_float:
        raise ConditionError(f"{constant.text}: only texts, and numbers without exponent, are read")
    parts = value.as_tuple()
    digits, scale = len(parts.digits), -int(parts.exponent)
    if "." in constant.text:
        return _decimal(max(digits - scale, 0), scale)
    if digits > _SAFE_INT_DIGITS:
        raise ConditionError(f"{constant.text} has more than {_SAFE_INT_DIGITS} digits")
    return ValueForm("int", digits, unsigned=False if value < 0 else None)


def arithmetic_form(sign: str, left: ValueForm, right: ValueForm) -> ValueForm:
    """Return the form of a sum, difference or product. Raises ConditionError."""
    if not left.is_number or not right.is_number:
        raise ConditionError(f"{sign} computes whole numbers and DECIMALs, not {_odd(left, right)}")
    if left.kind == right.kind == "int":
        unsigned = _common_sign((left, right))
        if sign == "-" and unsigned:
            raise ConditionError(
                "a difference of unsigned numbers is an error below 0: write"
                " cast(column as decimal(20,0))"
            )
        digits = left.width + right.width if sign == "*" else max(left.width, right.width) + 1
        signed = False if unsigned is None and sign == "-" else unsigned
        return ValueForm("int", min(digits, MAX_INT_DIGITS), unsigned=signed)
    if sign == "*":
        return _decimal(left.whole_digits + right.whole_digits, left.scale + right.scale)
    whole = max(left.whole_digits, right.whole_digits) + 1
    return _decimal(whole, max(left.scale, right.scale))


def common_form(forms: Sequence[ValueForm]) -> ValueForm:
    """Return the form of values of any of these. Raises ConditionError for forms that differ."""
    kinds = {form.kind for form in forms}
    if kinds == {"text"}:
        return ValueForm("text", max(form.width for form in forms))
    if kinds == {"int"}:
        return ValueForm("int", max(form.width for form in forms), unsigned=_common_sign(forms))
    if kinds <= {"int", "decimal"}:
        whole = max(form.whole_digits for form in forms)
        return _decimal(whole, max(form.scale for form in forms))
    if len(set(forms)) > 1:
        raise ConditionError(
            f"values of one type are needed, not {' and '.join(sorted(kinds))}, or of other digits"
            " of a second: SQL would convert some"
        )
    return forms[0]


def decimal_cast_form(form: ValueForm, precision: int, scale: int) -> ValueForm:
    """Return the form of a cast to DECIMAL. Raises ConditionError."""
    if not form.is_number:
        raise ConditionError(f"only numbers are cast to DECIMAL, not {form.kind}")
    if not 0 < precision <= MAX_DECIMAL_DIGITS or scale > min(precision, MAX_DECIMAL_SCALE):
        raise ConditionError(f"no server has a DECIMAL({precision},{scale})")
    # rounding may add a digit: 9.99 is 10.0
    rounds = scale < form.scale
    if precision - scale < form.whole_digits + rounds:
        raise ConditionError(
            f"DECIMAL({precision},{scale}) is too small for {form.whole_digits + rounds} digits in"
            " front of the point: servers would cut large values"
        )
    return ValueForm("decimal", precision, scale)


def signed_cast_form(form: ValueForm) -> ValueForm:
    """Return the form of a cast to SIGNED. Raises ConditionError."""
    if not form.is_number or form.unsigned:
        raise ConditionError(
            "only signed numbers and DECIMALs are cast to SIGNED; an unsigned one is to DECIMAL(20)"
        )
    if form.kind == "int":
        return replace(form, unsigned=False)
    digits = form.whole_digits + bool(form.scale)
    if digits > _SAFE_INT_DIGITS:
        raise ConditionError(f"{digits} digits are more than every SIGNED number has")
    return ValueForm("int", max(digits, 1), unsigned=False)


def _common_sign(forms: Sequence[ValueForm]) -> bool | None:
    signs = {form.unsigned for form in forms} - {None}
    if len(signs) > 1:
        raise ConditionError(
            "a signed and an unsigned number: write cast(column as decimal(20,0)) for one of them"
        )
    return next(iter(signs), None)


def _decimal(whole: int, scale: int) -> ValueForm:
    digits = max(whole + scale, 1)
    if digits > MAX_DECIMAL_DIGITS or scale > MAX_DECIMAL_SCALE:
        raise ConditionError(
            f"the result has {digits} digits, {scale} of them behind the point: servers have"
            f" {MAX_DECIMAL_DIGITS} and {MAX_DECIMAL_SCALE}"
        )
    return ValueForm("decimal", digits, scale)


def _odd(*forms: ValueForm) -> str:
    return next(form.kind for form in forms if not form.is_number)
