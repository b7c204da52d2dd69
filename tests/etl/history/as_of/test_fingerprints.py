"""Fingerprints: equal for the same rows however they were read, and different for others."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.history.as_of import Fingerprint, fingerprint
from sluice.etl.history.as_of.row_digests import LONG_ROW_BYTES, row_digests
from tests.etl.story import table

COLUMNS = {
    "id": (pa.int64(), "id bigint"),
    "f": (pa.float32(), "f float"),
    "d": (pa.float64(), "d double"),
    "n": (pa.large_string(), "n decimal(20,5)"),
    "t": (pa.large_string(), "t datetime(3)"),
    "e": (pa.large_string(), "e time(2)"),
    "s": (pa.large_string(), "s varchar(20)"),
    "b": (pa.large_binary(), "b varbinary(20)"),
    "j": (pa.large_string(), "j json"),
    "u": (pa.uint64(), "u bigint unsigned"),
    "x": (pa.uint64(), "x bit(9)"),
}
TABLE = table(7, "t", *(spec for _, spec in COLUMNS.values()), primary="id")
SAME = {
    "f": [0.0, -0.0],
    "d": [0.0, -0.0],
    "n": ["1.10000", "1.1", "1.100"],
    "t": ["2024-01-01 00:00:00.000", "2024-01-01 00:00:00"],
    "e": ["-00:00:00.00", "00:00:00"],
    "j": ['{"b": [1, 2.0], "a": null}', '{"a":null,"b":[1.0,2]}', '{"a": null, "b": [1, 2]}'],
}
OTHER = {
    "id": [1, 2, None],
    "f": [0.5, 1.5, None],
    "d": [1e300, 1e-300, None],
    "n": ["1.10000", "11", "110", "-1.1", "0", None],
    "t": ["2024-01-01 00:00:00.000", "2024-01-01 00:00:00.100", "0000-00-00 00:00:00.000", None],
    "e": ["10:00:00.00", "01:00:00.00", "-01:00:00.00", None],
    "s": ["", "a", "A", "a ", "1:a", "n", None],
    "b": [b"", b"\0", b"\0\0", b"n", None],
    "j": [
        "null",
        '"null"',
        "1",
        '"1"',
        "1.5",
        "[1]",
        "18446744073709551615",
        "18446744073709551614",
        None,
    ],
    "u": [0, 1, 2**64 - 1, None],
    "x": [0, 256, None],
}


def batch(rows: list[dict[str, object]], names: list[str]) -> pa.RecordBatch:
    arrays = [pa.array([row.get(name) for row in rows], COLUMNS[name][0]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names)


def of(rows: list[dict[str, object]], names: list[str] | None = None) -> Fingerprint:
    return fingerprint(TABLE, [batch(rows, names or list(COLUMNS))])


@pytest.mark.parametrize("name", SAME)
def test_one_value_in_two_spellings_is_one(name: str) -> None:
    assert len({of([{"id": 1, name: value}]) for value in SAME[name]}) == 1


@pytest.mark.parametrize("name", OTHER)
def test_other_values_are_others(name: str) -> None:
    found = {of([{"s": "x", name: value}]).digest for value in OTHER[name]}
    assert len(found) == len(OTHER[name])


rows_ = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(values) for name, values in OTHER.items()}),
    max_size=8,
)


@given(rows_, st.integers(0, 8), st.randoms())
def test_neither_order_nor_batches_nor_the_place_of_columns_count(
    rows: list[dict[str, object]], cut: int, rng: random.Random
) -> None:
    names = list(COLUMNS)
    rng.shuffle(names)
    mixed = rng.sample(rows, len(rows))
    parts = fingerprint(TABLE, [batch(mixed[:cut], names), batch(mixed[cut:], names)])
    assert parts == of(rows) == of(mixed[:cut]) + of(mixed[cut:])
    assert Fingerprint.from_json(json.loads(json.dumps(parts.to_json()))) == parts


@given(rows_, rows_)
def test_rows_with_other_values_or_in_another_number_differ(
    one: list[dict[str, object]], other: list[dict[str, object]]
) -> None:
    def sort(rows: list[dict[str, object]]) -> list[str]:
        return sorted(map(repr, rows))

    assert (of(one) == of(other)) == (sort(one) == sort(other))


def test_values_run_together_in_no_way() -> None:
    assert of([{"s": "a", "b": b"bc"}]) != of([{"s": "ab", "b": b"c"}])
    assert of([{"s": None, "b": b"1"}]) != of([{"s": "1", "b": None}])
    assert of([{"s": "a"}, {"s": "a"}]) != of([{"s": "a"}])


free = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "s": st.none() | st.text(st.characters(codec="utf-8"), max_size=40),
            "b": st.none()
            | st.binary(max_size=40)
            | st.binary(max_size=40).map(b".".rjust(LONG_ROW_BYTES - 50).__add__),
        }
    ),
    min_size=1,
    max_size=6,
)


@given(free, st.data())
def test_one_value_a_row_more_and_a_row_less_change_it(
    rows: list[dict[str, object]], data: st.DataObject
) -> None:
    found = of(rows)
    at = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(["id", "s", "b"]))
    other = data.draw(free)[0][name]
    changed = [*rows[:at], rows[at] | {name: other}, *rows[at + 1 :]]
    assert (of(changed).digest == found.digest) == (other == rows[at][name])
    assert of([*rows, rows[at]]).digest != found.digest
    assert of([*rows[:at], *rows[at + 1 :]]).digest != found.digest


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_what_goes_from_one_column_to_the_next_changes_it(
    text: bytes, one: int, other: int
) -> None:
    first, second = (
        of([{"s": text[:at].hex(), "b": text[at:].hex().encode()}]) for at in (one, other)
    )
    assert (first == second) == (text[:one] == text[:other])


def digests(strings: list[bytes]) -> list[tuple[int, int]]:
    upper, lower = row_digests(pa.array(strings, pa.large_binary()))
    return list(zip(upper.tolist(), lower.tolist(), strict=True))


@given(
    st.lists(
        st.binary(max_size=70) | st.binary(max_size=9).map(b".".rjust(LONG_ROW_BYTES - 5).__add__),
        min_size=1,
    ),
    st.data(),
)
def test_neither_what_is_beside_a_row_nor_where_it_lies_counts(
    strings: list[bytes], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(strings) - 1))
    upper, lower = row_digests(
        pa.array([b"x" * 5, *strings, b"y"], pa.large_binary()).slice(at + 1, 1)
    )
    assert digests(strings)[at] == digests([strings[at]])[0] == (int(upper[0]), int(lower[0]))
    assert len(set(digests(strings))) == len(set(strings))


@pytest.mark.parametrize(
    "snapshot", [b"", b"\xff", b"0" * 7, b"\0" * 33, b"id-12345:0123456789,9,0.50"]
)
def test_near_values_differ_in_either_half(snapshot: bytes) -> None:
    bits = 8 * len(snapshot)
    number = int.from_bytes(snapshot, "big")
    near = {snapshot}
    for one in range(bits):
        near.update(
            (number ^ (1 << one | 1 << other)).to_bytes(len(snapshot), "big")
            for other in range(one, bits)
        )
        near.add((number ^ 1 << one).to_bytes(len(snapshot), "big"))
    near.update(snapshot + bytes(count) for count in range(40))
    near.update(snapshot + str(count).encode() for count in range(2000))
    upper, lower = zip(*digests(list(near)), strict=True)
    assert len(set(upper)) == len(set(lower)) == len(near)


@pytest.mark.slow
def test_every_bit_of_a_digest_depends_on_every_bit_of_a_row() -> None:
    """A bit that is turned turns each bit of the digest about every other time."""
    chance = random.Random(3)
    strings = [chance.randbytes(19) for _ in range(600)]
    plain = digests(strings)
    for bit in range(19 * 8):
        mask = (1 << bit).to_bytes(19, "little")
        turned = digests(
            [bytes(a ^ b for a, b in zip(text, mask, strict=True)) for text in strings]
        )
        for half in (0, 1):
            for place in range(64):
                count = sum(
                    (a[half] ^ b[half]) >> place & 1 for a, b in zip(plain, turned, strict=True)
                )
                assert 180 < count < 420, f"bit {bit} of the row, {place} of half {half}"
