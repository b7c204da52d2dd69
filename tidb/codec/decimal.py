"""MyDecimal: exact decimals in MySQL's binary form.

Layout: precision P (1 byte), fraction digits F (1 byte), body. The body holds the digits in groups
of 9 as 4-byte big-endian integers, counted from the decimal point; the leading integer group and
the trailing fraction group may be shorter and take `[0,1,1,2,2,3,3,4,4,4][digits]` bytes. For
negative numbers every body byte is inverted. Last, the first byte's top bit is flipped, so bodies
of the same P and F compare bytewise in numeric order.
"""

from decimal import Decimal

from sluice.tidb.codec.errors import CodecError

DIGITS_TO_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
MAX_PRECISION = 81
MAX_FRACTION = 30


def body_size(precision: int, fraction: int) -> int:
    """Return bytes of the body for P and F."""
    whole = precision - fraction
    return (
        whole // 9 * 4
        + DIGITS_TO_BYTES[whole % 9]
        + fraction // 9 * 4
        + DIGITS_TO_BYTES[fraction % 9]
    )


def group_digits(precision: int, fraction: int) -> list[int]:
    """Return the number of digits of each group, in order of the body."""
    whole = precision - fraction
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (fraction // 9), fraction % 9]
    return [digits for digits in groups if digits]


def valid_prefix(precision: int, fraction: int) -> bool:
    """Return whether P and F can start a decimal."""
    return 1 <= precision <= MAX_PRECISION and fraction <= min(precision, MAX_FRACTION)


def encode_decimal(
    value: str | Decimal, precision: int | None = None, fraction: int | None = None
) -> bytes:
    """Encode an exact decimal as P, F and body.

    Without `precision` and `fraction` the digits of `value` decide. Raises CodecError when the
    value needs more digits than they allow (nothing is rounded).
    """
    number = Decimal(value)
    if not number.is_finite():
        raise CodecError(f"invalid decimal {value}")
    sign, digits, exponent = number.as_tuple()
    exponent = int(exponent)
    if fraction is None:
        fraction = max(0, -exponent)
    shift = exponent + fraction
    unscaled = int("".join(map(str, digits)) or "0")
    if shift < 0:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            raise CodecError(f"{value} has more than {fraction} fraction digits")
    else:
        unscaled *= 10**shift
    text = str(unscaled) if unscaled else ""
    if precision is None:
        precision = max(len(text), fraction, 1)
    if not valid_prefix(precision, fraction):
        raise CodecError(
            f"a decimal can't have {precision} digits, {fraction} of them after the point"
        )
    if len(text) > precision:
        raise CodecError(f"{value} needs more than {precision} digits")
    text = text.rjust(precision, "0")
    body, at = bytearray(), 0
    for count in group_digits(precision, fraction):
        body += int(text[at : at + count]).to_bytes(DIGITS_TO_BYTES[count], "big")
        at += count
    if sign and unscaled:
        body = bytearray(b ^ 0xFF for b in body)
    body[0] ^= 0x80
    return bytes((precision, fraction)) + bytes(body)


def decode_decimal(data: bytes | memoryview, pos: int = 0) -> tuple[str, int]:
    """Read P, F and body at `pos`.

    Returns `(text with exactly F fraction digits, position after it)`.

    Raises CodecError when the prefix is impossible, the body too short or a group holds more digits
    than it may.
    """
    if len(data) < pos + 2:
        raise CodecError("decimal without precision and fraction", pos)
    precision, fraction = data[pos], data[pos + 1]
    if not valid_prefix(precision, fraction):
        raise CodecError(
            f"decimal with {precision} digits, {fraction} of them after the point", pos
        )
    end = pos + 2 + body_size(precision, fraction)
    body = bytearray(data[pos + 2 : end])
    if len(data) < end:
        raise CodecError(
            f"decimal({precision},{fraction}) needs {end - pos - 2} bytes, {len(body)} are left",
            pos + 2,
        )
    negative = body[0] < 0x80
    body[0] ^= 0x80
    if negative:
        body = bytearray(b ^ 0xFF for b in body)
    digits, at = [], 0
    for count in group_digits(precision, fraction):
        size = DIGITS_TO_BYTES[count]
        group = int.from_bytes(body[at : at + size], "big")
        if group >= 10**count:
            raise CodecError(f"decimal group of {count} digits holds {group}", pos + 2 + at)
        digits.append(str(group).rjust(count, "0"))
        at += size
    text = "".join(digits)
    whole = text[: precision - fraction].lstrip("0") or "0"
    sign = "-" if negative and text.strip("0") else ""
    return f"{sign}{whole}.{text[precision - fraction :]}" if fraction else sign + whole, end
