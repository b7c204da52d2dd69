"""The connection to a Spark Connect server by ``[spark]``: TLS, a token, and no proxy."""

from __future__ import annotations

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder

from sluice.etl.settings import Spark

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


class Channel(DefaultChannelBuilder):  # type: ignore[misc] # pyspark has no types here
    """Makes the channel of a session. The token is in no URL, so that no error shows it."""

    def __init__(self, server: Spark, session_id: str) -> None:
        super().__init__(
            f"{server.remote.rstrip('/')}/;session_id={session_id};user_id=sluice", _OPTIONS
        )
        self._server = server

    def toChannel(self) -> grpc.Channel:
        """Open the channel.

        Raises SettingsError if a file or a token in the settings is missing.
        """
        server, token = self._server, self._server.token()
        if server.uses_tls:
            credentials = grpc.ssl_channel_credentials(*server.tls_files())
        elif token:
            credentials = grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP)
        else:
            return self._insecure_channel(self.endpoint)
        if token:
            shown = grpc.access_token_call_credentials(token)
            credentials = grpc.composite_channel_credentials(credentials, shown)
        return self._secure_channel(self.endpoint, credentials)
