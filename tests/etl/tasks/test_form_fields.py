"""The fields of forms, as commands, pages and DAGs give them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy.backfill.request import BackfillRequest
from sluice.etl.copy.errors import BackfillError
from sluice.etl.restore import RestoreError
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.etl.tasks.form_fields import (
    backfill_request,
    check_restore_allowed,
    drill_request,
    reapply_request,
    restore_request,
    snapshot_request,
    verify_request,
)
from sluice.tidb import moments

SINCE = 470614793860415501
BACKFILL: dict[str, Any] = {
    "tables": [" shop.orders ", ""],
    "where": None,
    "from_key": None,
    "to_key": None,
    "mode": "compare",
    "rows_per_second": None,
}


def test_empty_fields_and_empty_lines_count_as_missing() -> None:
    assert backfill_request(BACKFILL) == BackfillRequest(("shop.orders",), mode="compare")
    assert verify_request({"tables": ["", " a.b"], "how": ""}).tables == ("a.b",)
    assert drill_request({}) == drill_request({"tables": "", "max_mb": None, "at": ""})
    asked = {
        "since": str(SINCE),
        "until": "",
        "target": "",
        "tables": None,
        "rows_per_second": None,
    }
    reapply = reapply_request(asked)
    assert (reapply.since, reapply.until, reapply.tables, reapply.is_repair) == (SINCE, 0, (), True)


def test_a_field_that_makes_no_sense_is_refused_with_its_reason() -> None:
    with pytest.raises(BackfillError, match="--table orders: a table is named with its schema"):
        backfill_request(BACKFILL | {"tables": ["orders"]})
    with pytest.raises(BackfillError, match="which tables"):
        backfill_request(BACKFILL | {"tables": [" "]})
    with pytest.raises(moments.MomentError):
        restore_request({"until": "tomorrow"})
    with pytest.raises(RestoreError, match="only one of them can name the target"):
        restore_request({"until": None, "target": "/a.toml", "connection": "spare"})


def test_the_source_of_a_snapshot_is_the_forms_then_the_settings_then_the_best() -> None:
    form = {"source": "", "full": False, "escape_backslash": True}
    assert snapshot_request(form | {"source": "tidb"}, "downstream").source == "tidb"
    assert snapshot_request(form, "downstream").source == "downstream"
    assert snapshot_request(form, "").source == "auto"


def test_a_place_for_a_restore_must_be_in_the_settings_list(tmp_path: Path) -> None:
    usual = Settings(Upstream("unused"), Relay(str(tmp_path)), Downstream())
    allowed = replace(
        usual,
        restore=replace(usual.restore, targets=("connection:spare",), folders=(str(tmp_path),)),
    )
    check_restore_allowed(usual, {})
    check_restore_allowed(allowed, {"connection": "spare", "folder": str(tmp_path / "shop")})
    for form in (
        {"connection": "other"},
        {"target": "/etc/sluice.toml"},
        {"folder": str(tmp_path / ".." / "elsewhere")},
    ):
        with pytest.raises(RestoreError, match=r"it isn't among \[restore\]"):
            check_restore_allowed(allowed, form)
