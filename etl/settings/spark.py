"""Section ``[spark]``: where Spark is, and how Sluice and what it needs come to its workers."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.secrets import from_connection, from_environment, from_file

_REMOTE = re.compile(r"sc://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/:;@\[\]?#]+)(:(?P<port>\d{1,5}))?/?")
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|spark://[^\s/]+|k8s://\S+")
_SECRET = re.compile(r"secret|password|token|access[._-]?key", re.IGNORECASE)
"""Matches names of Spark settings that are secret, as Spark itself does."""
_RESERVED_CONFS = {
    "spark.master": "[spark] master sets it",
    "spark.remote": "[spark] remote sets it",
    "spark.sql.session.timeZone": "Sluice needs UTC",
}
PACKAGE = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class Spark:
    """The Spark Connect server, and the cluster behind it."""

    remote: str = "sc://127.0.0.1:15002"
    """URL of the Spark Connect server: ``sc://host:port``."""
    token_env: str = ""
    """Name of the environment variable that holds the server's token; without a token none is
    shown.
    """
    token_file: str = ""
    """File with the token in its first line."""
    token_connection: str = ""
    """Airflow connection with the token for a password."""
    ssl: bool = False
    """Whether the server, or the proxy before it, has TLS.

    A token needs it, unless the server is on this machine.
    """
    ssl_ca: str = ""
    """File with the certificates of the authorities that the server's must come from; by default
    those of the machine.
    """
    ssl_cert: str = ""
    """File with this client's certificate, for a server that wants one."""
    ssl_key: str = ""
    shared_files: bool = False
    """Whether all workers of a cluster mount the folders of ``file://`` URLs under the same paths.

    Without it they are refused there: workers would write to folders of their own.
    """
    package: str = "auto"
    """How Sluice comes to the workers: ``always``, ``never`` or ``auto``.

    ``always``: sent over the session; ``never``: as it is installed there; ``auto``: sent unless
    the workers run on this machine.
    """
    environment: str = ""
    """A packed Python environment (``.tar.gz``, ``.zip``) with what Sluice needs, sent over the
    session, for workers that have only Spark.
    """
    python: str = ""
    """The Python of the workers, a path there.

    By default the one in `environment`, without one that of the server's ``PYSPARK_PYTHON``.
    """
    master: str = "local[*]"
    """The Spark master of the server that ``sluice spark connect`` starts.

    ``spark://host:7077``, ``yarn``, ``k8s://https://host:443``, ``local[*]``.
    """
    conf: dict[str, str | int | bool] = field(default_factory=dict)
    """Settings of Spark's: ``sluice spark connect`` starts the server with them, each session sets
    those that a session can set, and refuses a server that was started with others.
    """

    batch: dict[str, str | int | bool] = field(default_factory=dict)
    """Keys of this section that are others for all but landing and applying, such as `remote`.

    So a large as-of, a copy or a compaction takes no core that replication waits for.
    """

    def for_batch(self) -> Spark:
        """Return the server for work that may take long: with the keys of ``[spark.batch]``."""
        own = {key.replace("-", "_"): value for key, value in self.batch.items()}
        return replace(self, **own, batch={})  # type: ignore[arg-type] # `check` has looked

    def _check_batch(self) -> None:
        known = {each.name: type(each.default) for each in fields(self)}
        for key, value in self.batch.items():
            kind = known.get(key.replace("-", "_"))
            if kind not in (str, bool) or "_" in key:
                raise ValueError(f"unknown key [spark.batch] {key}")
            if type(value) is not kind:
                raise ValueError(f"[spark.batch] {key} = {value!r}: a {kind.__name__} expected")
        if self.batch:
            self.for_batch().check()

    def check(self) -> None:
        """Check the section. Raises ValueError, which names the key."""
        self._check_remote()
        self._check_batch()
        if not _MASTER.fullmatch(self.master):
            raise ValueError(
                f"[spark] master = {self.master!r}: local[*], spark://host:7077, yarn,"
                " k8s://https://host:443 expected"
            )
        if self.package not in PACKAGE:
            raise ValueError(
                f'[spark] package = {self.package!r}: "auto", "always" and "never" are possible'
            )
        if self.environment and not self.environment.endswith((".tar.gz", ".tgz", ".zip")):
            raise ValueError(
                f"[spark] environment = {self.environment!r}: a .tar.gz, .tgz or .zip expected"
            )
        if bool(self.ssl_cert) != bool(self.ssl_key):
            raise ValueError("[spark] ssl-cert and ssl-key belong together")
        self._check_token()
        for key in self.conf:
            _check_conf(key)

    def _check_remote(self) -> None:
        if _REMOTE.fullmatch(self.remote):
            return
        scheme = self.remote.partition("://")[0]
        if _MASTER.fullmatch(self.remote):
            raise ValueError(
                f"[spark] remote = {self.remote!r}: that's a master. Put it into [spark] master,"
                " start a Spark Connect server on it with `sluice spark connect`, and give its"
                " address here: sc://host:15002"
            )
        if scheme == "sc":  # not repeated: it may hold a token
            raise ValueError(
                "[spark] remote: sc://host:port and nothing else expected; token-env, token-file or"
                " token-connection name the place of a token, and ssl = true asks for TLS"
            )
        raise ValueError(f"[spark] remote = {self.remote!r}: sc://host:port expected")

    def _check_token(self) -> None:
        given = [
            name for name in ("token_env", "token_file", "token_connection") if getattr(self, name)
        ]
        if len(given) > 1:
            raise ValueError(
                f"[spark] {' and '.join(name.replace('_', '-') for name in given)}: one of them"
            )
        if given and not self.uses_tls and not self.is_on_this_machine:
            raise ValueError(
                f"[spark] {given[0].replace('_', '-')}: the token would go through the network in"
                f" plain text: ssl = true is needed for {self.remote}"
            )

    @property
    def host(self) -> str:
        """Return the host of the Spark Connect server."""
        found = _REMOTE.fullmatch(self.remote)
        return found["host"].strip("[]") if found else ""

    @property
    def is_on_this_machine(self) -> bool:
        """Return whether the server is asked over loopback."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def uses_tls(self) -> bool:
        return self.ssl or bool(self.ssl_ca or self.ssl_cert)

    def token(self) -> str:
        """Return the server's token, "" for none. Raises SettingsError."""
        if self.token_env:
            return from_environment("[spark] token-env", self.token_env)
        if self.token_file:
            return from_file("[spark] token-file", self.token_file)
        if self.token_connection:
            return from_connection("[spark] token-connection", self.token_connection)
        return ""

    def tls_files(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Return the contents of `ssl_ca`, `ssl_key`, `ssl_cert`; None where nothing is set.

        Raises SettingsError.
        """
        return (
            _content("ssl-ca", self.ssl_ca),
            _content("ssl-key", self.ssl_key),
            _content("ssl-cert", self.ssl_cert),
        )

    @property
    def conf_texts(self) -> dict[str, str]:
        """Return `conf` as Spark takes it."""
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in self.conf.items()
        }


def _check_conf(key: str) -> None:
    if not key.startswith("spark."):
        raise ValueError(
            f"[spark.conf] {key}: Spark's settings begin with spark. (write the key in quotes)"
        )
    if key in _RESERVED_CONFS:
        raise ValueError(f"[spark.conf] {key}: {_RESERVED_CONFS[key]}")
    if _SECRET.search(key):
        raise ValueError(
            f"[spark.conf] {key}: secrets are not written into this file; they belong into"
            " spark-defaults.conf of the Spark Connect server"
        )


def _content(key: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"[spark] {key} {path}: {error.strerror}") from None
