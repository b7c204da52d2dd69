"""Section ``[airflow]``: how a pipeline's DAGs stand in an Airflow that others use, too.

Imports nothing heavy: DAG files read it again and again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.pauses import span_ms
from sluice.tidb.table_name import names_table

__all__ = ["Airflow"]

_CLOCK = re.compile(r"([01]?\d|2[0-3]):[0-5]\d\Z")
_PREFIX = re.compile(r"[A-Za-z0-9_.-]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Airflow:
    """The names of a pipeline's DAGs, and where their tasks run.

    Changes take effect when Airflow reads the DAG files again.
    """

    dag_prefix: str = "sluice_"
    """Beginning of all DAG ids, which are unique in an Airflow: ``sluice_replicate_shop``."""
    pool: str = ""
    """Pool of all tasks but those of `replicate` and `archive`, which always run; by default
    Airflow's.
    """
    queue: str = ""
    """Queue of all tasks, for executors that have some; by default Airflow's."""
    python: str = ""
    """Interpreter of the pipeline's own environment, which tasks start there; by default Airflow's.

    Any program will do that passes its arguments on to one, and its standard input and output.
    """
    pages: str = ""
    """Airflow connection of the server that answers the pages, `sluice pages`: its host, its port,
    and its token as password. By default Airflow's api-server answers itself.
    """
    replication: str = "tasks"
    """What lands and applies: ``tasks`` of the DAG `replicate`, or ``service``, which is `sluice
    replicate`; then the DAG watches it.
    """
    service_queues: list[str] = field(default_factory=list)
    """Queues of Airflow's workers on different hosts, best two. A task in each, of a DAG of its
    own, runs the service: one works, the others stand by.
    """
    run_time: str = "5m"
    """How long a run of the DAG `replicate` or `service_1` lasts, unless its form says otherwise.
    Changed settings take effect with the next one. Longer runs are fewer rows in Airflow's
    database.
    """
    executor: str = ""
    """Executor of all tasks, if Airflow has several; by default its first one."""
    priority_weight: int = 1
    """Priority of the tasks of `replicate` among those that wait for a slot; others have 1."""
    owner: str = "sluice"
    """Owner of the DAGs, as Airflow shows and filters it."""
    owner_link: str = ""
    """Address behind the owner's name: a page, or ``mailto:``."""
    access_control: dict[str, str] = field(default_factory=dict)
    """Airflow's actions on these DAGs by role: ``Ops = "can_read, can_edit"``."""
    tags: list[str] = field(default_factory=list)
    """Tags of the DAGs, beside ``sluice`` and the pipeline's name."""
    notify: str = ""
    """A notifier (`BaseNotifier`) or a function of one parameter, the context: ``module.name``.

    It is called once when a cause begins that people should know, and once when it is over: what
    the tasks of these DAGs fail with, and what the DAG `notify` finds.
    """
    notify_lag: str = "5m"
    """The lag from which on `notify` is called."""
    digest: str = ""
    """When the DAG `digest` sends the digest of a day, by `notify`: ``07:00 Europe/Berlin``."""
    timeout: str = ""
    """How long a task of a job may take, such as ``12h``: then the job is paused, and the task is
    tried again; by default any time.
    """
    deadline: str = ""
    """How long a run of a job's DAG may take before `notify` is called, such as ``2h``."""
    assets: list[str] = field(default_factory=list)
    """Tables, as ``schema.table``, for which the DAG `assets` reports each archived UTC day."""
    differences: str = "fail"
    """What the DAG `verify` does about rows that differ: ``fail`` its run, or ``event``, only
    report them in the event of its asset.
    """
    decisions: bool = False
    """Whether the DAG `decide` asks for a decision in Airflow when replication has stopped."""

    def __post_init__(self) -> None:
        if not _PREFIX.match(self.dag_prefix):
            raise SettingsError(
                f"[airflow] dag-prefix = {self.dag_prefix!r}: letters, digits, _, . and - only"
            )
        spans = (
            ("timeout", self.timeout),
            ("deadline", self.deadline),
            ("run-time", self.run_time),
            ("notify-lag", self.notify_lag),
        )
        for key, span in spans:
            try:
                span_ms(span or "1h")
            except ValueError as error:
                raise SettingsError(f"[airflow] {key} = {error}") from None
        if self.differences not in ("fail", "event"):
            raise SettingsError(
                f"[airflow] differences = {self.differences!r}: fail or event expected"
            )
        if self.replication not in ("tasks", "service"):
            raise SettingsError(
                f"[airflow] replication = {self.replication!r}: tasks or service expected"
            )
        if self.service_queues and self.replication != "service":
            raise SettingsError(
                '[airflow] service-queues are of replication = "service", which isn\'t set'
            )
        if self.deadline and not self.notify:
            raise SettingsError("[airflow] deadline calls notify, which isn't set")
        self._check_digest()
        for table in self.assets:
            if not names_table(table):
                raise SettingsError(f"[airflow] assets: {table!r}: schema.table expected")

    def _check_digest(self) -> None:
        if not self.digest:
            return
        if not self.notify:
            raise SettingsError("[airflow] digest is sent by notify, which isn't set")
        clock, _, zone = self.digest.partition(" ")
        try:
            ZoneInfo(zone or "UTC")
        except (ValueError, OSError, KeyError):
            raise SettingsError(f"[airflow] digest: {zone!r} is no time zone") from None
        if not _CLOCK.match(clock):
            raise SettingsError(
                f"[airflow] digest = {self.digest!r}: a time is expected, as 07:00 Europe/Berlin"
            )

    @property
    def digest_schedule(self) -> tuple[str, str]:
        """Return the cron expression of `digest`, and its time zone."""
        clock, _, zone = self.digest.partition(" ")
        hour, minute = clock.split(":")
        return f"{int(minute)} {int(hour)} * * *", zone or "UTC"
