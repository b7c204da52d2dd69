"""Documents are read back as they were written, and what is wrong in one is named."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.relay.format_version import NewerFormatError
from sluice.relay.jobs.open_jobs import OpenJobs
from sluice.relay.json_codec import OMIT_DEFAULT, JsonDocument, from_bytes, to_bytes, to_values


class Pair(NamedTuple):
    schema: str
    table: str


@dataclass(frozen=True, slots=True)
class Counts(JsonDocument):
    JSON_ARRAY: ClassVar = True

    rows: int = 0
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hexed(JsonDocument):
    """A part with a form of its own."""

    digest: int

    def to_json(self) -> str:
        return f"{self.digest:x}"

    @classmethod
    def from_json(cls, document: Any) -> "Hexed":
        return cls(int(document, 16))


@dataclass(frozen=True, slots=True)
class Document(JsonDocument):
    JSON_NAME: ClassVar = "the document"
    JSON_FIELDS: ClassVar = {"pipeline": OMIT_DEFAULT}

    name: str
    pipeline: str = ""
    at_ts: int | None = None
    how: Literal["upstream", "snapshot"] = "upstream"
    rate: float = 0.0
    done: bool = False
    folder: Path = Path("a")
    ids: frozenset[int] = frozenset()
    pairs: tuple[Pair, ...] = ()
    counts: Mapping[int, Counts] = field(default_factory=dict)
    hexed: tuple[Hexed, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Complete(JsonDocument):
    JSON_COMPLETE: ClassVar = True

    why: str
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Plain(JsonDocument):
    """Fields of numbers, text and literals alone."""

    name: str
    rows: int
    share: float = 0.0
    how: Literal["rows", "tables"] = "rows"


@dataclass(frozen=True, slots=True)
class Counted(JsonDocument):
    counts: Mapping[int, int]


_PATHS = st.text("abc/", min_size=1).map(Path)
_INTS = st.integers(0, 1 << 64)


@given(
    st.builds(
        Document,
        rate=st.floats(allow_nan=False),
        folder=_PATHS,
        hexed=st.tuples(st.builds(Hexed, _INTS)),
        counts=st.dictionaries(_INTS, st.builds(Counts)),
    )
)
def test_a_document_is_read_back_as_it_was_written(document: Document) -> None:
    assert Document.from_bytes(document.to_bytes()) == document


def test_fields_are_written_in_their_order_and_what_differs_as_its_class_declares() -> None:
    document = Document(
        "ü", "p", 5, ids=frozenset({9, 2}), pairs=(Pair("s", "t"),),
        counts={7: Counts(1, (2,))}, hexed=(Hexed(255),),
    )  # fmt: skip
    plain = (
        '"at_ts": 5, "how": "upstream", "rate": 0.0, "done": false, "folder": "a", "ids": [2, 9],'
        ' "pairs": [["s", "t"]], "counts": {"7": [1, [2]]}, "hexed": ["ff"], "texts": []'
    )
    assert document.to_bytes().decode() == f'{{"name": "ü", {plain}, "pipeline": "p"}}\n'
    assert "pipeline" not in to_values(Document("x"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"at_ts": True}, "found True @ $.at_ts"),
        ({"at_ts": "5"}, "found '5' @ $.at_ts"),
        ({"how": "later"}, "later not in literal typing.Literal['upstream', 'snapshot']) @ $.how"),
        ({"done": 1}, "expected bool, found 1 @ $.done"),
        ({"counts": {"7": [1, ["x"]]}}, "expected int, found 'x'"),
        ({"hexed": ["z"]}, "'z'"),
        ({"newer": 1}, "extra fields found (newer) @ $"),
        ({"name": None}, "expected str, found None @ $.name"),
        ({"pairs": 1}, "expected a list, found 1 @ $.pairs"),
        ({"texts": "ab"}, "expected a list, found 'ab' @ $.texts"),
    ],
)
def test_what_is_wrong_is_named_with_its_field_and_what_was_found(
    change: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError) as caught:
        Document.from_json({"name": "x", **change})
    assert str(caught.value).startswith("the document: ") and named in str(caught.value)


@pytest.mark.parametrize("wrong", [[], None, "x", 1])
def test_no_object_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="the document: expected an object, found"):
        Document.from_json(wrong)


def test_a_field_with_a_default_may_be_missing_but_in_a_complete_document() -> None:
    assert Document.from_json({"name": "x"}) == Document("x")
    with pytest.raises(ValueError, match="required field missing"):
        Document.from_json({})
    with pytest.raises(ValueError, match="Complete: required field missing: begun"):
        Complete.from_json({"why": "x"})
    with pytest.raises(ValueError, match="required field missing: made, open"):
        OpenJobs.from_bytes(b"{}")


@pytest.mark.parametrize(
    "document",
    [
        {"name": "a", "rows": 1, "share": 0.5, "how": "rows"},
        {"how": "rows", "share": 1, "rows": 1, "name": "a"},  # another order, an int for a float
    ],
)
def test_fields_of_plain_values_are_checked_in_any_order(document: dict[str, Any]) -> None:
    assert Plain.from_json(document) == Plain("a", 1, document["share"], "rows")
    for name, wrong in [("rows", True), ("share", "1"), ("how", "columns"), ("name", None)]:
        with pytest.raises(ValueError, match=rf"@ \$\.{name}"):
            Plain.from_json(document | {name: wrong})
    with pytest.raises(ValueError, match="extra fields found"):
        Plain.from_json(document | {"newer": 1})
    with pytest.raises(ValueError, match="rows"):
        Plain.from_json({name: value for name, value in document.items() if name != "rows"})


def test_counts_by_number_are_counts() -> None:
    assert Plain.from_json({"name": "a", "rows": 1}) == Plain("a", 1)
    assert Counted.from_json({"counts": {"7": 1, "8": 2}}) == Counted({7: 1, 8: 2})
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(ValueError, match="expected int"):
            Counted.from_json({"counts": {"7": 1, "8": wrong}})
    with pytest.raises(ValueError, match="x"):
        Counted.from_json({"counts": {"x": 1}})


def test_a_newer_format_is_refused_before_its_fields_are_looked_at() -> None:
    text = json.dumps({"format": 2, "newer": 1}).encode()
    with pytest.raises(NewerFormatError, match="the document has format 2"):
        Document.from_bytes(text)


def test_a_list_of_documents_is_one_file() -> None:
    complete = [Complete("a"), Complete("b", True)]
    assert from_bytes(list[Complete], to_bytes(complete), "the list") == complete
    with pytest.raises(ValueError, match=r"the list: .*@ \$\[1\]"):
        from_bytes(list[Complete], b'[{"why": "a", "begun": true}, {"why": "b"}]', "the list")
