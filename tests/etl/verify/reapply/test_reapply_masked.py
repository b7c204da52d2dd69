"""Past windows of a pipeline that masks, into a target with rules of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.etl.changes.formats.binlog_file import list_files, read_file
from sluice.etl.settings import Settings
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify.reapply import ReplayRequest
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE, masked
from tests.etl.story import Story, table
from tests.etl.verify.reapply.reapplying import files_in, pipeline_with, reapply

PEOPLE = table(11, "t", "id int", "mail varchar(40)", "phone varchar(20)", "n int", primary="id")
MAIL, PHONE = "ann@example.org", "+49 30 1234"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)


class Past:
    """A row that has landed, and a pipeline that masks two columns of it."""

    def __init__(self, server: MariaDBServer, folder: Path) -> None:
        self.story = Story(server, folder)
        self._since = self.story.now - 10
        self.story.create(PEOPLE, "CREATE TABLE t (...)")
        self.story.insert(PEOPLE, {"id": 1, "mail": MAIL, "phone": PHONE, "n": 7})
        rule = {
            "tables": ["d.*"],
            "mask": {"mail": "email", "phone": "digits"},
            "rename": {"n": "number"},
        }
        self.pipeline: Settings = replace(
            pipeline_with(self.story.url, folder / "running"),
            filters=parse_filter({"columns": [rule], "mask": SECTION})[0],
        )

    def request(self, target: dict[str, Any]) -> ReplayRequest:
        return ReplayRequest(self._since, self.story.now, target)

    def into_database(self, *rules: dict[str, Any], **more: Any) -> ReplayRequest:
        server = {"host": "127.0.0.1", "port": self.story.server.port}
        columns = [{"tables": ["d.t"], **rule} for rule in rules]
        return self.request({"downstream": server, "filter": {"columns": columns, **more}})


@pytest.mark.parametrize(
    ("rules", "row"),
    [
        ([], (1, masked(MAIL, "email"), masked(PHONE, "digits"), 7)),
        ([{"leave-out": ["mail"]}], (1, masked(PHONE, "digits"), 7)),
        (
            [{"rename": {"mail": "post"}, "mask": {"n": "null"}}],
            (1, masked(MAIL, "email"), masked(PHONE, "digits"), None),
        ),
    ],
)
def test_rules_of_the_target_leave_the_pipelines_masks(
    mariadb: MariaDBServer,
    tmp_path: Path,
    rules: list[dict[str, Any]],
    row: tuple[Any, ...],
) -> None:
    past = Past(mariadb, tmp_path)
    assert reapply(past.pipeline, past.into_database(*rules, mask=SECTION)).is_done
    assert past.story.rows("t") == [row]


def test_the_target_cannot_mask_a_column_otherwise(mariadb: MariaDBServer, tmp_path: Path) -> None:
    past = Past(mariadb, tmp_path)
    request = past.into_database({"mask": {"mail": {"partial": 20}}}, mask=SECTION)
    why = r"the pipeline's \[\[filter.columns\]\] 1 \(.*\) mask column mail of d\.t differently"
    with pytest.raises(SluiceError, match=why):
        reapply(past.pipeline, request)


def test_files_get_the_pipelines_masks_under_rules_of_their_own(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    past = Past(mariadb, tmp_path)
    target = files_in(tmp_path / "again") | {"filter": {"ignore-db": ["test"]}}
    assert reapply(past.pipeline, past.request(target)).is_done
    written = b"".join(
        bytes(message) for path in list_files(tmp_path / "again") for _, message in read_file(path)
    )
    for clear, mask in ((MAIL, "email"), (PHONE, "digits")):
        assert masked(clear, mask).encode() in written and clear.encode() not in written
