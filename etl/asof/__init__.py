"""Tables of the past: any of them as of any moment of the archive, computed by Spark from a base and the changes since,
without a database and without what applies changes downstream: so it can judge that as well.
"""

from etl.asof.by_spark import BySpark, here
from etl.asof.computing import AsOfTable
from etl.asof.errors import AsOfError
from etl.asof.fingerprint import Fingerprint, compared_columns, fingerprint
from etl.asof.front import Past, Run, differences_between, tables_as_of

__all__ = [
    "AsOfError",
    "AsOfTable",
    "BySpark",
    "Fingerprint",
    "Past",
    "Run",
    "compared_columns",
    "differences_between",
    "fingerprint",
    "here",
    "tables_as_of",
]
