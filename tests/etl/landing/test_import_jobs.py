"""Tables that IMPORT INTO filled are named, by the jobs in TiDB's own table of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.landing._import_jobs import ImportJob, ImportWatch, read_import_jobs
from sluice.relay import RelayLog
from sluice.relay.verification_log import UPSTREAM, TableVerified, Verifications, VerifiedRun
from sluice.tidb import tso
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.rows import encode_insert
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import hash_field_key
from tests.relay.relaykit import window
from tests.tidb.test_stored_rows import FORMATS, pairs_of, prefix_of

_BIGINT, _TIMESTAMP, _VARCHAR, _TEXT = 8, 7, 15, 252
_COLUMNS = [
    ("id", _BIGINT), ("create_time", _TIMESTAMP), ("start_time", _TIMESTAMP),
    ("update_time", _TIMESTAMP), ("end_time", _TIMESTAMP), ("table_schema", _VARCHAR),
    ("table_name", _VARCHAR), ("table_id", _BIGINT), ("created_by", _VARCHAR),
    ("parameters", _TEXT), ("source_file_size", _BIGINT), ("status", _VARCHAR),
    ("step", _VARCHAR), ("summary", _TEXT), ("error_message", _TEXT),
]  # fmt: skip
"""As TiDB 7.2 to 8.5 have them."""
_INFO: dict[str, Any] = {
    "id": 54,
    "name": {"O": "tidb_import_jobs", "L": "tidb_import_jobs"},
    "state": 5,
    "pk_is_handle": True,
    "cols": [
        {
            "id": number,
            "name": {"O": name, "L": name},
            "offset": number - 1,
            "state": 5,
            "type": {
                "Tp": kind, "Flag": 3 if number == 1 else 0, "Flen": 64,
                "Decimal": 6 if kind == _TIMESTAMP else -1, "Charset": "utf8mb4",
                "Collate": "utf8mb4_bin", "Elems": None,
            },
        }
        for number, (name, kind) in enumerate(_COLUMNS, 1)
    ],
}  # fmt: skip
TABLE = Table.from_tidb(_INFO, 0, "mysql")


class ImportingTiKV:
    """The keys of a cluster in place of TiKV; nothing but `mysql.tidb_import_jobs` if it has it."""

    def __init__(self, form: str = "version 2", *, has_table: bool = True) -> None:
        self._form = form
        schema = {"id": 1, "db_name": {"O": "mysql", "L": "mysql"}, "state": 5}
        self.keys = {hash_field_key("DBs", b"DB:1"): json.dumps(schema).encode()}
        if has_table:
            self.keys[hash_field_key("DB:1", b"Table:54")] = json.dumps(_INFO).encode()

    def put(self, job_id: int, name: tuple[str, str], ended: str | None, **more: Any) -> None:
        row = {
            "id": job_id, "create_time": "2026-11-20 08:00:00.000000",
            "start_time": "2026-11-20 08:00:01.000000", "update_time": None, "end_time": ended,
            "table_schema": name[0], "table_name": name[1], "table_id": 120, "created_by": "r@%",
            "parameters": "{}", "source_file_size": 9, "status": "finished", "step": "",
            "summary": None, "error_message": None,
        } | more  # fmt: skip
        inserted = encode_insert(TABLE, row)
        pairs = dict(pairs_of(inserted[prefix_of(TABLE, inserted) :]))
        key = b"t" + encode_int(54) + b"_r" + encode_int(job_id)
        self.keys[key] = FORMATS[self._form](pairs)

    def scan(self, start: bytes, end: bytes, ts: int, *_: int) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((k, v) for k, v in self.keys.items() if start <= k < end))


@pytest.mark.parametrize("form", FORMATS)
def test_jobs_that_began_and_ended_are_read_with_table_and_time(form: str) -> None:
    tikv: Any = ImportingTiKV(form)
    tikv.put(1, ("shop", "a.b"), "2026-11-20 08:00:05.250000")
    tikv.put(2, ("shop", "🐘"), None, status="running")
    tikv.put(3, ("shop", "c"), "2026-11-20 09:00:00.000000", status="cancelled")
    tikv.put(4, ("shop", "d"), "2026-11-20 09:00:00.000000", start_time=None, status="cancelled")
    ended = 1_795_161_605_250
    assert read_import_jobs(tikv, 9) == [
        ImportJob(1, "shop", "a.b", "finished", ended),
        ImportJob(3, "shop", "c", "cancelled", ended - 5_250 + 3_600_000),
    ]


def test_a_cluster_without_jobs_or_without_their_table_has_none() -> None:
    for has_table in (True, False):
        tikv: Any = ImportingTiKV(has_table=has_table)
        assert read_import_jobs(tikv, 9) == []


_MS = 1_795_161_605_250  # 2026-11-20T08:00:05.250Z
_ENDED = "2026-11-20 08:00:05.250000"


@pytest.mark.parametrize(
    ("began_ms", "verified_ms", "is_named"),
    [(_MS - 1, 0, True), (_MS, _MS - 1, True), (_MS + 1, 0, False), (_MS - 1, _MS + 1, False)],
)
def test_a_table_that_import_into_filled_is_named_until_it_is_verified(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    began_ms: int,
    verified_ms: int,
    is_named: bool,
) -> None:
    tikv: Any = ImportingTiKV()
    tikv.put(5, ("d", "my-t"), _ENDED)
    tikv.put(6, ("other", "t"), _ENDED)
    relay, ts, counted = RelayLog.open(tmp_path.as_uri()), tso.compose(_MS + 9), list[int]()
    relay.begin(window(tso.compose(began_ms), ts))
    if verified_ms:
        done = TableVerified("d.my-t", ts, verified_ms, 1, 9, 0, UPSTREAM, "v")
        Verifications(relay).note(VerifiedRun("v", ts, verified_ms, 1.0, UPSTREAM, (done,)))
    watch = ImportWatch(relay, tikv, lambda schema, name: schema == "d", counted.append)
    with caplog.at_level(logging.WARNING, "sluice.land"):
        for _ in range(3):
            watch.check(ts)
            monkeypatch.setattr(watch, "_due", 0.0)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(counted) == is_named
    known = Verifications(relay).last()
    assert (not known["d.my-t"].equal if "d.my-t" in known else False) == is_named
    if is_named:
        assert "IMPORT INTO filled table d.my-t: job 5" in said[0]
        assert "`sluice backfill --table d.my-t`" in known["d.my-t"].problem


def test_landing_goes_on_where_the_jobs_of_import_into_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tikv: Any = ImportingTiKV()
    tikv.put(5, ("d", "t"), _ENDED)
    tikv.keys = {key: value[:-3] for key, value in tikv.keys.items()}
    relay = RelayLog.open(tmp_path.as_uri())
    relay.begin(window(1, 9))
    with caplog.at_level(logging.WARNING, "sluice.land"):
        ImportWatch(relay, tikv, lambda *_: True, pytest.fail).check(9)
    assert "can't look for jobs of IMPORT INTO" in caplog.text
