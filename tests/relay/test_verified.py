"""What is known of tables being equal on both sides."""

from pathlib import Path

import pytest

from sluice.relay import Failure, RelayCorruptError, RelayLog
from sluice.relay.verification_log import (
    MAX_RUNS,
    TableVerified,
    Verifications,
    VerifiedRun,
    VerifierStatus,
)


@pytest.fixture
def relay(tmp_path: Path) -> RelayLog:
    return RelayLog.open(f"file://{tmp_path}")


def table(name: str = "shop.orders", at_ms: int = 5, **values: object) -> TableVerified:
    known = {
        "ts": 7,
        "rows": 10,
        "bytes": 100,
        "differences": 0,
        "how": "upstream",
        "job": "v-1",
    } | values
    return TableVerified(name=name, at_ms=at_ms, **known)  # type: ignore[arg-type]


def run(at_ms: int, *tables: TableVerified, job: str = "v-1") -> VerifiedRun:
    return VerifiedRun(job, 7, at_ms, 1.5, "upstream", tables)


def test_a_tables_last_verification_is_known_and_runs_come_newest_first(relay):
    notes = Verifications(relay)
    assert notes.last() == {}
    notes.note(run(5, table(), table("shop.items")))
    notes.note(run(9, table(at_ms=9, differences=2), job="v-2"))
    again = Verifications(RelayLog.open(relay.url))
    assert again.last() == {
        "shop.orders": table(at_ms=9, differences=2),
        "shop.items": table("shop.items"),
    }
    assert [one.job for one in again.runs(10)] == ["v-2", "v-1"]
    assert again.runs(1) == [run(9, table(at_ms=9, differences=2), job="v-2")]


def test_an_older_run_that_is_told_of_late_is_not_the_last(relay):
    notes = Verifications(relay)
    notes.note(run(9, table(at_ms=9)))
    notes.note(run(5, table(at_ms=5), job="v-2"))
    assert notes.last()["shop.orders"].at_ms == 9


def test_some_equal_rows_do_not_hide_what_was_found_in_all(relay):
    notes = Verifications(relay)
    notes.note(run(5, table(differences=3)))
    notes.note(run(6, table(at_ms=6, how="continuous"), job="v-2"))
    assert notes.last()["shop.orders"].differences == 3
    notes.note(run(7, table(at_ms=7, how="archive"), job="v-3"))
    assert notes.last()["shop.orders"].equal


def test_a_table_that_is_gone_is_forgotten(relay):
    notes = Verifications(relay)
    notes.note(run(5, table(), table("shop.items", differences=3)))
    notes.note(run(6, job="v-2"), {"shop.orders", "shop.others"})
    assert list(notes.last()) == ["shop.orders"]


def test_whether_verification_gets_on_is_known_and_a_look_that_can_not_be_read_is_none(
    relay, tmp_path
):
    notes = Verifications(relay)
    assert notes.look() == VerifierStatus()
    notes.save_status(VerifierStatus(9, 5, 100, "TiDB doesn't answer"))
    assert Verifications(relay).look() == VerifierStatus(9, 5, 100, "TiDB doesn't answer")
    (tmp_path / "verified" / "look.json").write_text('{"other": 1}')
    assert notes.look() == VerifierStatus()


def test_only_so_many_runs_are_kept_and_ten_thousand_tables_are_one_document(relay, tmp_path):
    notes = Verifications(relay)
    notes.note(run(1, *(table(f"shop.t{n}") for n in range(10_000))))
    assert len(notes.last()) == 10_000
    folder = tmp_path / "verified" / "runs"
    for number in range(MAX_RUNS + 3):
        (folder / f"{number + 10:014d}-x.json").write_text("{}")
    notes.note(run(2000))
    assert len(list(folder.iterdir())) == MAX_RUNS
    assert [one.at_ms for one in notes.runs(3)] == [2000], (
        "files that can't be read are passed over"
    )


def test_a_document_that_can_not_be_read_is_named(relay, tmp_path):
    notes = Verifications(relay)
    notes.note(run(5, table()))
    (path,) = (tmp_path / "verified" / "last").iterdir()
    path.write_text("[{}]")
    with pytest.raises(RelayCorruptError, match=path.name):
        notes.last()


def test_what_a_newer_version_has_for_people_is_passed_over(relay: RelayLog) -> None:
    notes = Verifications(relay)
    notes.note(run(5, table()))
    notes.note(run(9, table(at_ms=9), job="v-2"))
    notes.save_status(VerifierStatus(looked_ms=1))
    relay.failures.note(Failure("land", "no disk", "", 1))
    relay.failures.note(Failure("apply", "no server", "", 2))
    for path in ("verified/runs/*v-2.json", "verified/*.json", "failures/land.json"):
        for file in Path(relay.url.removeprefix("file://")).glob(path):
            file.write_text('{"format": 2, "unheard_of": true}')
    assert [one.job for one in notes.runs(10)] == ["v-1"]
    assert notes.look() == VerifierStatus()
    assert [one.what for one in relay.failures.list()] == ["apply"]
