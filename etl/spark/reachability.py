"""Check that a Spark server takes connections, without loading pyspark."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from sluice.etl.settings import Spark
from sluice.etl.spark.errors import SparkUnavailableError

__all__ = ["check_reachable"]

_PORT = 15002
"""The port of a URL without one, as in pyspark."""
_REACH_TIMEOUT_S = 3.0


def check_reachable(server: Spark) -> None:
    """Check that the server takes connections, much sooner than `attach` gives up.

    Raises SparkUnavailableError.
    """
    address = urlsplit(server.remote)
    try:
        socket.create_connection(
            (address.hostname or "", address.port or _PORT), _REACH_TIMEOUT_S
        ).close()
    except OSError as error:
        raise SparkUnavailableError(
            f"no server takes connections at {server.remote}: {error}; is it running?"
        ) from error
