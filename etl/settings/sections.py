"""The sections of ``sluice.toml``: what each key means, its type and its default.

Keys are written with hyphens there. How the file is read: `sluice.etl.settings.sluice_toml`.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sluice.etl.changes.channels import Channels
from sluice.etl.changes.messages import MessageFormat
from sluice.etl.changes.rules import Filter, ReplicationRules, Routes
from sluice.etl.settings.airflow_section import Airflow
from sluice.etl.settings.drainer_toml import DrainerSettingsError, drainer_password
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.job_sections import Archive, Quality, Restore, Verify
from sluice.etl.settings.mask_rules import CLEAR
from sluice.etl.settings.pauses import keep_ms, parse_pause_ms
from sluice.etl.settings.pipeline_names import dag_id
from sluice.etl.settings.secrets import from_connection, from_environment, from_file
from sluice.etl.settings.sinks import File, Kafka
from sluice.etl.settings.spark import Spark
from sluice.etl.settings.sql_login import sql_tls

if TYPE_CHECKING:
    from sluice.relay import RelayLog
    from sluice.tidb import TLS

SOURCES = ("auto", "binlog", "capture")
"""Where landing takes changes from, see `Upstream`."""
MODES = ("atomic", "parallel")
"""The modes of applying changes, see `Apply`."""
LAST_COMMIT_WINS = "last-commit-wins"
CONFLICT_RULES = ("stop", LAST_COMMIT_WINS)
"""The rules for conflicts, see `Apply`."""
_DEFAULT_PUT_INTERVAL_MS = 1_000
_IDLE_PUT_INTERVALS = 10


@dataclass(frozen=True, slots=True)
class Upstream:
    """The TiDB cluster."""

    pd_urls: str
    """PD's client URLs, comma separated; etcd is served there too."""
    initial_commit_ts: int = -1
    """Where to begin when there is neither a checkpoint nor a relay log.

    A TSO, 0 for all the pumps have, -1 for now.
    """
    ssl_ca: str = ""
    """File with the certificates of the authorities behind PD's, TiKV's and the pumps'
    certificates; without it nothing uses TLS.
    """
    ssl_cert: str = ""
    """File with the certificate that this client shows, if they want one."""
    ssl_key: str = ""
    source: str = "auto"
    """Where changes come from.

    ``binlog``: pumps that take binlogs; ``capture``: pumps that capture from TiKV; ``auto``:
    binlogs until a pump has captured what comes next, and captured changes alone beside a TiDB
    that writes no binlogs.
    """
    node_id: str = ""
    """This pipeline's id among the drainers in the registry.

    By default one made from the relay log's URL.
    """
    new_collations: str = "auto"
    """Whether the cluster has new collations.

    ``true``: it has; ``false``: it was bootstrapped without them, so all text compares byte for
    byte; ``auto``: as recorded in `mysql.tidb`.
    """
    unrelated_drainers: list[str] = field(default_factory=list)
    """Node ids of Drainers that replicate the same cluster to another downstream: they may be
    online beside this pipeline.
    """
    connection: str = ""
    """Airflow connection with PD's hosts, port and TLS; the keys in this section count before its
    fields.
    """
    sql_host: str = ""
    """Host at which TiDB serves SQL; used only by copies that read from it."""
    sql_connection: str = ""
    """Airflow connection of type ``mysql`` with TiDB's host, port, user, password and TLS; the keys
    in this section count before its fields.
    """
    sql_port: int = 4000
    sql_user: str = "root"
    sql_password_env: str = ""
    """Name of the environment variable that holds the password, here and on Spark's workers."""
    sql_ssl_ca: str = ""
    """File with the certificates of the authorities that TiDB's must come from; without it nothing
    asks for TLS.
    """
    sql_ssl_cert: str = ""
    sql_ssl_key: str = ""
    sql_ssl_verify_identity: bool = True
    """Whether TiDB's certificate must be for `sql_host`."""

    def __post_init__(self) -> None:
        if self.new_collations not in ("auto", "true", "false"):
            raise SettingsError(
                f'[upstream] new-collations is {self.new_collations!r}, "auto", "true" and "false"'
                " are possible"
            )
        if self.source not in SOURCES:
            raise SettingsError(
                f"[upstream] source is {self.source!r}, {', '.join(map(repr, SOURCES))} are"
                " possible"
            )

    def tls(self) -> TLS | None:
        """TLS for every connection to the cluster, None for none.

        The files are read where a connection is made: on Spark's workers too they must be under
        these paths. Raises SettingsError.
        """
        from sluice.tidb import TLS

        try:
            return TLS.from_settings(self.ssl_ca, self.ssl_cert, self.ssl_key)
        except (OSError, ValueError) as error:
            raise SettingsError(f"[upstream] ssl-ca, ssl-cert, ssl-key: {error}") from None


@dataclass(frozen=True, slots=True)
class Relay:
    """The relay log."""

    url: str
    """``file:///dir``, ``s3://bucket/dir`` (options region, endpoint_override, scheme), ``gs://…``
    or ``az://…``, without credentials.
    """
    keep: str = ""
    """How long windows stay after every consumer has passed them: ``7d``, ``36h``, at least ``1h``.

    By default for ever.
    """
    put_every: str = ""
    """The shortest interval between windows while landing keeps up: ``500ms``, ``2s``, ``1m``.

    ``0s`` lands as soon as there is something. By default ``1s`` in an object store, which charges
    for each window, and ``0s`` in a folder.
    """
    connection: str = ""
    """Airflow connection with the credentials for an object store, of type ``aws``,
    ``google_cloud_platform`` or ``wasb``; by default they come from the environment, or from the
    machine's role.
    """
    pipeline: str = ""
    """This pipeline's name among others that read the same relay log.

    By default that of its file in the folder of pipelines. One of them may have none.
    """

    @property
    def keep_ms(self) -> int:
        """Return `keep` in ms, 0 for ever. Raises ValueError."""
        return keep_ms(self.keep)

    @property
    def put_every_ms(self) -> int:
        """Return `put_every` in ms. Raises ValueError, RelayError."""
        if self.put_every:
            return parse_pause_ms(self.put_every)
        from sluice.relay.url import local_folder

        return 0 if local_folder(self.url) is not None else _DEFAULT_PUT_INTERVAL_MS


@dataclass(frozen=True, slots=True)
class Window:
    """The size of a landed window."""

    max_transactions: int = 5_000
    max_bytes: int = 16 * 2**20
    """Payload bytes of the transactions inside; a single larger transaction is a window of its own.
    """
    idle_interval_ms: int = 3_000
    """Interval of empty windows without traffic, by which the checkpoint moves on."""
    poll_interval_ms: int = 20
    """Interval of polling pumps that don't report when there is something new."""
    interval_ms: int = 70
    """The interval between the beginnings of two windows while landing keeps up.

    Each window costs some 9 ms of CPU time, however little is in it.
    """
    cpu_percent: int = 0
    """Share of a core up to which landing shortens the interval; 0: it is always `interval_ms`."""


@dataclass(frozen=True, slots=True)
class Apply:
    """The way in which landed windows go downstream."""

    mode: str = "atomic"
    """``atomic``: one session, a window and its checkpoint in one transaction. ``parallel``:
    several sessions side by side.
    """
    worker_count: int = 4
    """Number of sessions that write in mode ``parallel``."""
    max_rows: int = 25_000
    """Row changes that one downstream transaction may hold, when several landed windows are
    waiting.
    """
    max_bytes: int = 32 * 2**20
    aligned_chunk_wait_ms: int = 1_000
    """How long changes wait for rows of a backfill; then applying goes on without them."""
    conflicts: str = "stop"
    """What becomes of a change of a row that the downstream's applications changed, too.

    ``stop``, or ``last-commit-wins``. With loopback control.
    """
    reverse_relay: str = ""
    """URL of the relay log of the pipeline in the other direction: it shows what they changed."""


@dataclass(frozen=True, slots=True)
class Downstream:
    """The kind of downstream, and the database if it is one."""

    host: str = ""
    port: int = 3306
    user: str = "root"
    connection: str = field(default="", kw_only=True)
    """Airflow connection of type ``mysql`` with host, port, user, password and TLS; the keys in
    this section count before its fields.
    """
    password_env: str = ""
    """Name of the environment variable that holds the password."""
    password_file: str = ""
    """File with the password in its first line."""
    password_connection: str = ""
    """Airflow connection with the password."""
    password_drainer_config: str = ""
    """drainer.toml with the password."""
    ssl_ca: str = ""
    """File with the certificates of the authorities that the server's must come from; without it
    nothing asks for TLS.
    """
    ssl_cert: str = ""
    """File with this client's certificate, for a server that wants one."""
    ssl_key: str = ""
    ssl_verify_identity: bool = True
    """Whether the server's certificate must be for `host`."""
    checkpoint_schema: str = "tidb_binlog"
    checkpoint_table: str = "checkpoint"
    recycle_schema: str = "sluice_recycle"
    """Schema in which dropped tables are kept for a day: RECOVER TABLE brings their rows back."""
    connect_timeout_s: int = 10
    read_timeout_s: int = 300
    type: str = "mysql"
    """``mysql`` (anything that speaks its protocol), ``file`` (see section ``[file]``) or ``kafka``
    (see ``[kafka]``).
    """
    loopback_control: bool = False
    """Whether another pipeline, or a Drainer, replicates this downstream back to the upstream.

    Then what is written is marked in `retl._drainer_repl_mark`, and marked transactions of the
    upstream are left out.
    """
    channel_id: int = 0
    """The channel of the marks, the same in both directions.

    In a `ring` that of the upstream.
    """
    ring: tuple[int, ...] = ()
    """The channels of three and more clusters that replicate each to the next, in that order.

    What has another's mark is passed on with it; what has the downstream's is left out.
    """

    @property
    def channel(self) -> int | None:
        """Return the channel of the marks, None without loopback control."""
        return self.channel_id if self.loopback_control else None

    @property
    def channels(self) -> Channels | None:
        """Return which marks are written, left out and passed on; None without loopback control."""
        if not self.loopback_control:
            return None
        if self.ring:
            return Channels.of_ring(self.channel_id, self.ring)
        return Channels.of_pair(self.channel_id)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, None if no setting asks for TLS.

        Raises SettingsError for files that aren't there or aren't certificates.
        """
        try:
            return sql_tls(
                self.ssl_ca, self.ssl_cert, self.ssl_key, verify_identity=self.ssl_verify_identity
            )
        except (OSError, ValueError) as error:
            raise SettingsError(f"[downstream] {error}") from None

    def password(self) -> str:
        """Return the password from the place in the settings, or the empty string.

        Raises SettingsError if it isn't there.
        """
        if self.password_env:
            return from_environment("[downstream] password-env", self.password_env)
        if self.password_file:
            return from_file("[downstream] password-file", self.password_file)
        if self.password_connection:
            return from_connection("[downstream] password-connection", self.password_connection)
        if self.password_drainer_config:
            try:
                return drainer_password(self.password_drainer_config)
            except DrainerSettingsError as error:
                raise SettingsError(f"[downstream] password-drainer-config: {error}") from None
        if self.connection:
            return from_connection("[downstream] connection", self.connection)
        return ""


Target = Downstream | File | Kafka
"""The section of the target, one for each kind of downstream."""


def downstream_name(target: Target) -> str:
    """Return the name of the target and the place of the checkpoint, without secrets."""
    match target:
        case File():
            return f"files in {target.dir}"
        case Kafka():
            return f"Kafka {target.brokers}, topic {target.topic or '<cluster id>_obinlog'}"
    return (
        f"{target.host}:{target.port}, checkpoint"
        f" {target.checkpoint_schema}.{target.checkpoint_table}"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections of ``sluice.toml``."""

    upstream: Upstream
    relay: Relay
    downstream: Downstream
    # By name from here on: what comes to stand between two others takes neither's place.
    archive: Archive = field(default_factory=Archive, kw_only=True)
    verify: Verify = field(default_factory=Verify, kw_only=True)
    restore: Restore = field(default_factory=Restore, kw_only=True)
    quality: Quality = field(default_factory=Quality, kw_only=True)
    spark: Spark = field(default_factory=Spark, kw_only=True)
    window: Window = field(default_factory=Window, kw_only=True)
    apply: Apply = field(default_factory=Apply, kw_only=True)
    file: File = field(default_factory=File, kw_only=True)
    kafka: Kafka = field(default_factory=Kafka, kw_only=True)
    airflow: Airflow = field(default_factory=Airflow, kw_only=True)
    filters: Filter = field(default_factory=Filter, kw_only=True)
    """Section ``[filter]``, see `sluice.etl.settings.rules`."""
    routes: Routes = field(default_factory=Routes, kw_only=True)
    """Sections ``[[route]]``."""
    ignored_ts: frozenset[int] = field(default=frozenset(), kw_only=True)
    """``[filter] ignore-txn-commit-ts``."""
    relay_log_values: str = field(default="", kw_only=True)
    """``[filter.mask] relay-log``; "" if it isn't there, see `lands_masked`."""
    name: str = field(default="", kw_only=True)
    """The pipeline's, as its file in the folder of pipelines is called; empty for the only one."""

    def dag_id(self, kind: str) -> str:
        """Return the id of the pipeline's DAG of a kind, such as ``sluice_replicate_shop``."""
        return dag_id(kind, self.name, self.airflow.dag_prefix)

    def spark_role(self, kind: str) -> str:
        """Return a role's session name on the Spark Connect server.

        Pipelines that read one relay log have their own.
        """
        return f"{kind} of {self.relay.pipeline}" if self.relay.pipeline else kind

    @property
    def downstream_name(self) -> str:
        """Return the downstream's name, see the function of that name."""
        return downstream_name(self.target)

    @property
    def landed_window(self) -> Window:
        """Return `window`, as seldom as `[relay] put-every` wants; without traffic more seldom."""
        every_ms = self.relay.put_every_ms
        idle_ms = max(self.window.idle_interval_ms, _IDLE_PUT_INTERVALS * every_ms)
        return replace(
            self.window,
            interval_ms=max(self.window.interval_ms, every_ms),
            cpu_percent=0 if every_ms else self.window.cpu_percent,
            idle_interval_ms=idle_ms,
        )

    @property
    def lands_masked(self) -> bool:
        """Return whether the relay log and the archive get masked values of masked columns."""
        return self.filters.masking_rule is not None and self.relay_log_values != CLEAR

    def open_relay(self) -> RelayLog:
        """Return the relay log, with what is this pipeline's own in it.

        Raises RelayError, OSError.
        """
        from sluice.relay import RelayLog

        return RelayLog.of_pipeline(self.relay.url, self.relay.pipeline, self.downstream_name)

    @property
    def archive_url(self) -> str:
        """Return the archive's URL."""
        from sluice.relay.url import folder_of

        return self.archive.url or folder_of(self.relay.url, "archive")

    @property
    def rules(self) -> ReplicationRules:
        """Return the rules for what goes downstream, and under which names."""
        return ReplicationRules(self.filters, self.routes, self.ignored_ts)

    @property
    def target(self) -> Target:
        """Return the section of the target: the database, the folder or the topic."""
        match self.downstream.type:
            case "file":
                return self.file
            case "kafka":
                return self.kafka
            case _:
                return self.downstream

    @property
    def message_format(self) -> MessageFormat:
        """Return the format of a topic's messages."""
        return self.kafka.message_format if self.downstream.type == "kafka" else MessageFormat()

    @property
    def time_zone(self) -> str:
        """Return the time zone in which TIMESTAMPs are written where the downstream has none."""
        return {"file": self.file.time_zone, "kafka": self.kafka.time_zone}.get(
            self.downstream.type, "UTC"
        )
