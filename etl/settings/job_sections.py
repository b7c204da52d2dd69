"""Type the sections about what runs beside replication: archive, verify, restore, quality."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.pauses import hours_of_day, keep_ms, span_ms


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive: the past for as long as it is wanted."""

    url: str = ""
    """URL as in `[relay] url`; by default the folder ``archive`` there."""
    connection: str = ""
    """Connection as in `[relay] connection`; by default the same for the same bucket."""
    every: str = "1m"
    """The interval between archiving passes: ``1m``, ``1h``."""
    worker_count: int = 1
    """Number of segments made at once in a backlog, each by one of Spark's cores."""
    keep: str = ""
    """How far back every moment can be restored, counted from the archive's end.

    ``30d``, at least ``1h``; by default for ever.
    """
    snapshots_every: str = "1d"
    """The age of the newest snapshot at which another one is made; empty: only on request."""
    snapshots_from: str = ""
    """The source of snapshots: ``downstream``, ``tidb`` or ``archive``.

    ``archive`` rolls the newest one forward. Empty: the downstream if it is equal to the upstream,
    else TiDB.
    """
    snapshots_keep: str = "7d"
    """How long each snapshot is kept; of older ones one for each such span stays.

    Empty: as long as `keep`.
    """
    drills_every: str = "7d"
    """The interval between restore drills; empty: only on request."""
    lake: str = "all"
    """The content of the lake, for people's queries: ``all``, ``new-values`` or ``none``.

    ``new-values``: of a row before a change only its key; ``none``: there is no lake. Restoring
    needs none of it.
    """
    iceberg: str = ""
    """The name of an Iceberg catalog, as pyiceberg is configured; empty: none.

    The lake's tables are kept up to date there.
    """

    def __post_init__(self) -> None:
        if self.snapshots_from not in ("", "downstream", "tidb", "archive"):
            raise SettingsError(
                f'[archive] snapshots-from is {self.snapshots_from!r}, "downstream", "tidb",'
                ' "archive" and "" are possible'
            )
        if self.lake not in ("all", "new-values", "none"):
            raise SettingsError(
                f'[archive] lake is {self.lake!r}, "all", "new-values" and "none" are possible'
            )
        if self.iceberg and self.lake == "none":
            raise SettingsError(
                f'[archive] iceberg = {self.iceberg!r} shows the lake, and lake is "none"'
            )

    @property
    def every_ms(self) -> int:
        """Return `every` in ms, above 0. Raises ValueError."""
        if not (found := span_ms(self.every)):
            raise ValueError(f"{self.every!r}: at least 1m")
        return found

    @property
    def keep_ms(self) -> int:
        """Return `keep` in ms, 0 for ever. Raises ValueError."""
        return keep_ms(self.keep)

    @property
    def snapshots_every_ms(self) -> int:
        """Return `snapshots_every` in ms, 0 for never. Raises ValueError."""
        return keep_ms(self.snapshots_every)

    @property
    def snapshots_keep_ms(self) -> int:
        """Return `snapshots_keep` in ms, 0: as long as `keep`. Raises ValueError."""
        return keep_ms(self.snapshots_keep)

    @property
    def drills_every_ms(self) -> int:
        """Return `drills_every` in ms, 0 for never. Raises ValueError."""
        return keep_ms(self.drills_every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Verification of both sides: continuous beside replication, and of all tables now and then."""

    rows_per_second: int = 2_000
    """Limit on rows and row changes read per second, of both sides and the relay log together."""
    megabytes_per_second: int = 4
    """Limit on megabytes read per second."""
    days: int = 7
    """Days within which every row is compared once."""
    delay_ms: int = 60_000
    """The shortest time after its commit at which a changed row is compared."""
    every: str = ""
    """Interval at which the DAG `verify` compares all tables by itself: ``1d``, at least ``1h``.

    By default only when it is triggered.
    """

    @property
    def every_ms(self) -> int:
        """Return `every` in ms, 0 for never. Raises ValueError."""
        return keep_ms(self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """The targets of the DAG `restore` beside the pipeline's own server.

    The command isn't limited.
    """

    targets: list[str] = field(default_factory=list)
    """Settings files, by path, and Airflow connections, as ``connection:ID``, that its form may
    name.
    """
    folders: list[str] = field(default_factory=list)
    """Folders in or below which it may write files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The expectations of the data, and how often they are checked."""

    suites: str = ""
    """The folder with the expectations, one file a table; from the settings file's folder on. By
    default ``quality``, of a settings file with another name than ``sluice.toml``
    ``quality-<name>``.
    """
    docs: str = ""
    """The folder for the Data Docs; by default ``quality/docs`` in the relay log's place."""
    keep: int = 50
    """Number of runs that are kept, in the Data Docs and for the pages."""
    every: str = ""
    """The interval at which the DAG `quality` runs by itself: ``1d``, at least ``1h``.

    By default only when it is triggered.
    """
    hours: str = ""
    """Hours (UTC) in which it runs: ``1-5`` is from 01:00 to before 05:00; by default any.

    ``22-4`` goes over midnight.
    """
    on: str = "downstream"
    """The data that it checks: ``downstream`` or ``lake``, and the replication in either case."""

    def __post_init__(self) -> None:
        if self.on not in ("downstream", "lake"):
            raise SettingsError(
                f'[quality] on is {self.on!r}, "downstream" and "lake" are possible'
            )

    @property
    def every_ms(self) -> int:
        """Return `every` in ms, 0 for never. Raises ValueError."""
        return keep_ms(self.every)

    @property
    def hours_utc(self) -> frozenset[int]:
        """Return the hours of the day, 0 to 23, in which the DAG may begin by itself.

        Raises ValueError.
        """
        return hours_of_day(self.hours)
