"""Match texts by LIKE, in time linear in their size."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.conditions.syntax import ConditionError


def match_like(pattern: str, values: Sequence[str | bytes | None]) -> pa.BooleanArray:
    """Return which values match an SQL pattern; NULL for None. Raises ConditionError.

    Arrow compiles LIKE to an RE2 automaton. A backtracking expression would let one request for
    `%a%a%a…` occupy Airflow's API server for hours.
    """
    wanted = _arrow_pattern(pattern)
    texts = [None if value is None or not _is_unicode(value) else value for value in values]
    raw = [None if value is None or _is_unicode(value) else _as_bytes(value) for value in values]
    try:
        found = pc.match_like(pa.array(texts, pa.large_string()), wanted)
        return pc.coalesce(found, pc.match_like(pa.array(raw, pa.large_binary()), wanted))
    except pa.ArrowInvalid as error:
        raise ConditionError("a LIKE pattern with too many signs") from error


def _is_unicode(value: str | bytes) -> bool:
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def _arrow_pattern(text: str) -> str:
    r"""Double each backslash that escapes nothing.

    To Arrow every one escapes, in SQL those before `%`, `_`, `\`.
    """
    return re.sub(r"\\([%_\\])|\\", lambda found: found[0] if found[1] else "\\\\", text)
