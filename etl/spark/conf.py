"""Set a session's Spark settings.

Those that a session can set are set; the others must be as the server was started with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.connect.proto import ConfigRequest, KeyValue

from sluice.etl.settings import SettingsError, Spark


def configure(spark: Any, server: Spark, own: Mapping[str, str]) -> None:
    """Set `own`, and the values of ``[spark.conf]``.

    Raises SettingsError for what only the server's start could have set, and hasn't.
    """
    _set(spark, own)
    asked = server.conf_texts
    if not asked:
        return
    _set(spark, asked, silent=True)
    there = spark.client.get_config_with_defaults(*((key, "") for key in asked))
    for (key, wanted), found in zip(asked.items(), there, strict=True):
        if found != wanted:
            raise SettingsError(
                f"[spark.conf] {key} = {wanted!r}: the Spark Connect server at {server.remote} was"
                f" started with {found or 'nothing'!r}, and no session can change that: start it"
                " with this value, as `sluice spark connect` does, or take the key out"
            )


def _set(spark: Any, confs: Mapping[str, str], *, silent: bool = False) -> None:
    pairs = [KeyValue(key=key, value=value) for key, value in confs.items()]
    spark.client.config(ConfigRequest.Operation(set=ConfigRequest.Set(pairs=pairs, silent=silent)))
