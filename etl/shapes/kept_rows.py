"""Rows that stay though the partition that the downstream has them in is dropped, see `etl.prepare._late_changes`: a
DDL step brings them along, to be written behind its statement in one transaction with the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from etl.steps import Step

_KEY = "kept"


def with_kept_rows(ddl: Step, loads: Iterable[Step]) -> Step:
    """The DDL step with load steps inside."""
    loads = list(loads)
    if not loads:
        return ddl
    heads = [
        {
            "schema": s.schema,
            "table": s.table,
            "detail": s.detail,
            "rows": s.rows,
            "commit_ts": s.commit_ts,
            "bytes": len(s.payload),
        }
        for s in loads
    ]
    return replace(ddl, detail={**ddl.detail, _KEY: heads}, payload=b"".join(bytes(s.payload) for s in loads))


def kept_rows(ddl: Step) -> Iterator[Step]:
    """The load steps inside a DDL step."""
    at = 0
    data = bytes(ddl.payload)
    for head in ddl.detail.get(_KEY) or ():
        payload = data[at : at + head["bytes"]]
        at += len(payload)
        yield Step("load", head["commit_ts"], head["schema"], head["table"], head["detail"], head["rows"], 0, payload)
