"""What a step says beside its payload, as text and back, and what is remembered of it."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.formats.layout import LoadLayout
from sluice.etl.changes.steps import DeleteDetail, ListedRows, LoadDetail
from sluice.etl.changes.steps._detail_text import detail_from_text, detail_to_text

NAMES = st.lists(st.sampled_from(["a", '"layout":', ',"layout":', "}", "é\\", ""]), max_size=3).map(
    tuple
)
LAYOUTS = st.builds(LoadLayout, NAMES, NAMES, NAMES, NAMES, NAMES, NAMES)
ROWS = {
    "first_ts": st.integers(0, 2**63),
    "safe": st.booleans(),
    "absent": st.booleans(),
    "source": st.sampled_from(["", 'a","layout":{}']),
    "worker": st.none() | st.integers(0, 9),
    "keeps_deleted": st.booleans(),
}
LISTED = st.builds(
    ListedRows, st.lists(st.integers(0)).map(tuple), st.lists(st.integers(0)).map(tuple), LAYOUTS
)
DETAILS = st.one_of(
    st.builds(DeleteDetail, **ROWS, listed=st.none() | LISTED),
    st.builds(
        LoadDetail,
        **ROWS,
        layout=LAYOUTS,
        replaces=st.integers(0, 9),
        keys=NAMES,
        warnings=st.integers(0, 2),
    ),
)


@given(DETAILS)
def test_a_detail_of_rows_comes_back_from_its_text(detail):
    assert detail_from_text(detail.kind, detail_to_text(detail)) == detail


def test_layouts_that_come_again_are_the_same_object():
    first, second = (
        detail_from_text(
            "load", detail_to_text(LoadDetail(ts, layout=LoadLayout(("a", "b")), replaces=ts))
        )
        for ts in (1, 2)
    )
    assert first.layout is second.layout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "turns", "most"),
    [("listed rows", 100, 2**21), ("replaced rows", 1_000, 2**21), ("layouts", 3_000, 48 * 2**20)],
)
def test_what_is_remembered_of_details_does_not_grow_with_what_never_comes_again(
    which, turns, most
):
    wide = LoadLayout(tuple(f"a_column_{n}" for n in range(200)))

    def detail(turn):
        if which == "listed rows":
            return DeleteDetail(
                turn, listed=ListedRows(tuple(range(turn, turn + 1_000)), (1,) * 1_000, wide)
            )
        layout = wide if which == "replaced rows" else LoadLayout((*wide.columns, f"of_{turn}"))
        return LoadDetail(turn, layout=layout, replaces=turn)

    tracemalloc.start()
    try:
        for turn in range(1_000, 1_000 + turns):
            made = detail(turn)
            detail_from_text(made.kind, detail_to_text(made))
        assert tracemalloc.get_traced_memory()[0] < most
    finally:
        tracemalloc.stop()
