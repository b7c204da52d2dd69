"""Tables of the past: any of them as of any moment of the archive, computed by Spark from a base and the changes since,
without a database and without what applies changes downstream: so it can judge that as well.

What only the client needs is imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.asof.errors import AsOfError
from etl.asof.fingerprint import Fingerprint, compared_columns, fingerprint
from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.asof.by_spark import BySpark, here
    from etl.asof.computing import AsOfTable
    from etl.asof.frames import Frames, as_frames
    from etl.asof.front import Past, Run, differences_between, tables_as_of

__all__ = [
    "AsOfError",
    "AsOfTable",
    "BySpark",
    "Fingerprint",
    "Frames",
    "Past",
    "Run",
    "as_frames",
    "compared_columns",
    "differences_between",
    "fingerprint",
    "here",
    "tables_as_of",
]

__getattr__ = on_first_use(
    __name__,
    {
        "AsOfTable": "etl.asof.computing",
        "BySpark": "etl.asof.by_spark",
        "Frames": "etl.asof.frames",
        "Past": "etl.asof.front",
        "Run": "etl.asof.front",
        "as_frames": "etl.asof.frames",
        "differences_between": "etl.asof.front",
        "here": "etl.asof.by_spark",
        "tables_as_of": "etl.asof.front",
    },
)
