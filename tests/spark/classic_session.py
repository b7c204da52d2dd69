"""Read changes and past tables in a classic session, and print what was read as JSON.

classic_session.py RELAY TABLE TSO
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from sluice.spark import register, tables_as_of


def main(relay: str, table: str, ts: str) -> None:
    """Print the changes through `ts`, and the number of rows as of then."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    assert not type(spark).__module__.startswith("pyspark.sql.connect")
    register(spark)
    source = spark.read.format("sluice").option("relay", relay).option("table", table)
    changes = source.option("until", ts).load().select("_op", "_commit_ts", "_pos")
    rows = [list(row) for row in changes.collect()]
    count = tables_as_of(spark, int(ts), table, relay=relay)[table].count()
    print(json.dumps({"changes": rows, "count": count}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
