"""The compiled kernel masks as Python does, with the processor's instructions and without."""

from __future__ import annotations

import itertools
import random
import struct
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.changes.masks import Mask, kernel, masked_changes, masked_columns
from sluice.etl.changes.masks.kernel_masks import kernel_mask
from sluice.relay import PART_SCHEMA
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from tests.compiled_kernels import compiled_kernel
from tests.etl.changes.masks.test_encoded_rows import TABLES, filters
from tests.etl.masking import KEY, VARIABLE
from tests.etl.story import table
from tests.examples import examples

FLAGS = {"": "", "without_sha_instructions": "-DWITHOUT_SHA_INSTRUCTIONS"}
BYTES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=40).map(str.encode),
    st.text("0123456789-+ ", max_size=300).map(str.encode),
    st.sampled_from(["a@b", "@", "x" * 70 + "@y", "s@" + "d" * 200]).map(str.encode),
    st.integers(0, 300).map(lambda size: b"7" * size),
)


@pytest.fixture(scope="module", autouse=True)
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        yield


@pytest.fixture(
    scope="module", params=["", pytest.param("without_sha_instructions", marks=pytest.mark.slow)]
)
def compiled(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFLAGS", FLAGS[request.param])
        return compiled_kernel("etl/changes/masks/kernel", tmp_path_factory.mktemp("masks"))


def by_kernel(compiled: Any, values: list[bytes], spec: Any) -> list[bytes]:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    data, offsets = compiled.values(b"".join(values), struct.pack(f"{len(ends)}q", *ends), 0, spec)
    at = struct.unpack(f"{len(ends)}q", offsets)
    return [data[begin:end] for begin, end in itertools.pairwise(at)]


@tried(max_examples=examples(200), deadline=None)
@given(st.lists(BYTES, max_size=6), st.sampled_from([16, 20, 40, 64, 200, -1]), st.data())
def test_a_text_is_masked_as_python_masks_it(compiled, values, width, data):
    kind = data.draw(st.sampled_from(["partial", "hash", "email", "digits"]))
    argument = str(data.draw(st.integers(0, 9))) if kind == "partial" else ""
    mask = Mask(kind, argument, f"env:{VARIABLE}")
    kind_of = "text" if width < 0 else f"varchar({width})"
    (column,) = (c for c in table(11, "t", f"a {kind_of}").columns if c.name == "a")
    change = mask.of_texts(column)
    masked = filters({"a": {"partial": int(argument)} if argument else kind})
    (shaped,) = (c for c in masked.narrowed(table(11, "t", f"a {kind_of}")).columns if c.mask)
    found = by_kernel(compiled, values, kernel_mask(shaped))
    assert found == [change(value) for value in values]


@pytest.mark.parametrize("mask", ["null", {"constant": "x"}, {"partial": 2}, "email", "digits"])
def test_a_longtext_is_masked_as_wide_as_tidb_says_it_is(compiled, mask):
    clear = table(11, "t", "a longtext")
    (named,) = (c for c in clear.columns if c.name == "a")
    wide = replace(clear, columns=(replace(named, flen=4_294_967_295),))
    (shaped,) = (c for c in filters({"a": mask}).narrowed(wide).columns if c.mask)
    spec = kernel_mask(shaped)
    assert all(number < 1 << 31 for number in spec[:-1]), "they are C's int"
    if mask in ("email", "digits"):
        assert len(by_kernel(compiled, [b"some@example.org 17"], spec)) == 1


def test_rows_of_every_kind_are_masked_as_python_masks_them(monkeypatch):
    if not kernel.IS_COMPILED:
        pytest.skip("the kernel isn't compiled here")
    rng = random.Random(7)
    for form, clear in TABLES.items():
        shaped, rows = filters().narrowed(clear), []
        for number in range(200):
            images = [row(rng, form, number) for _ in range(2)]
            kind = number % 3
            encoded = (
                encode_insert(clear, images[0])
                if kind == 0
                else encode_update(clear, *images)
                if kind == 1
                else encode_delete(clear, images[0])
            )
            rows.append((number, number, 0, clear.id, 1, kind, encoded))
        columns = (
            pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), PART_SCHEMA, strict=True)
        )
        changes = pa.table(list(columns), schema=PART_SCHEMA)
        asked = []
        with monkeypatch.context() as patch:
            masked_by = kernel.rows
            patch.setattr(
                kernel, "rows", lambda *a, by=masked_by: asked.append(by(*a)) or asked[-1]
            )
            found = masked_changes(shaped, changes)
        assert asked and None not in asked, "the kernel has masked them"
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "IS_COMPILED", False)
            assert masked_changes(shaped, changes).equals(found)


def row(rng: random.Random, form: str, number: int) -> dict[str, Any]:
    texts = [None, "", "é" * 9, "+49 170 1234567", "someone@example.org", "x" * 300]
    return {
        "id": str(number) if form == "common" else number,
        "_tidb_rowid": number,
        **{name: rng.choice(texts[:5]) for name in ("name", "mail", "phone")},
        "card": rng.choice(texts),
        "plain": rng.choice([None, "p"]),
        "n": rng.choice([None, -5, 2**31 - 1]),
        "doc": rng.choice([None, '{"a": 1}']),
        "born": rng.choice([None, "2000-02-29"]),
        "kind": rng.choice([None, "x"]),
        "d": rng.choice([None, "1.50"]),
        "tiny": rng.choice([None, 0, -1, -9, 127, -128, rng.randrange(-128, 128)]),
        "count": rng.choice([None, -5, 2**31 - 1, -(2**31), rng.randrange(10**9)]),
        "big": rng.choice([None, 7, 2**63, 2**64 - 1, rng.randrange(2**64)]),
    }


def test_copied_values_are_masked_as_python_masks_them(monkeypatch):
    (shaped,) = (c for c in filters().narrowed(TABLES["heap"]).columns if c.name == "name")
    values = pa.array([None, "a", "", None, "é" * 30, "a"], pa.large_string())
    for array in (values, values.slice(1), values.slice(0, 0)):
        batch = pa.record_batch([array], ["name"])
        found = masked_columns(batch, [shaped])
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "IS_COMPILED", False)
            assert masked_columns(batch, [shaped]).equals(found)


def test_cells_of_other_rows_are_refused(compiled):
    spec = (0, kernel.HASH, -1, 64, -1, KEY.encode())
    with pytest.raises(ValueError, match="outside"):
        compiled.values(b"abc", struct.pack("2q", 0, 4), 0, spec)
    with pytest.raises(ValueError, match="no such mask"):
        compiled.values(b"abc", struct.pack("2q", 0, 3), 0, (0, 9, -1, 64, -1, b""))
    with pytest.raises(ValueError, match="other rows"):
        compiled.rows(
            b"abc", struct.pack("2q", 0, 3), struct.pack("q", 0), b"\0", b"", b"", 1, 0, (spec,)
        )
    beyond = struct.pack("QQ", 2 << 56 | 2, 9)  # nine bytes from the third on, of three
    args = (b"abc", struct.pack("2q", 0, 3), struct.pack("q", 0), b"\0", b"", beyond, 1, 0, (spec,))
    assert compiled.rows(*args) is None
