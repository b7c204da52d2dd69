"""A bootstrap with all that belongs to it: the upstream's schema at the source's position, pumps that still have what
was committed since, and a place among the drainers, so that they keep it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Self

from etl.copy.bootstrap import JOB, Bootstrap, BootstrapSummary, Progress
from etl.copy.definitions import Definitions, read_definitions
from etl.copy.dumpling import DumplingFolder, DumplingOptions
from etl.copy.errors import CopyError
from etl.copy.gc_hold import GcHold
from etl.copy.ledger import Ledger
from etl.copy.loads import MakeLoads, SparkLoads
from etl.copy.plan import CopyPlan
from etl.copy.source import Source
from etl.copy.tidb_sql import TidbAddress, TidbSql
from etl.copy.watch import Watch, check_kept
from etl.landing.planner import Planner
from etl.ownership import DrainerEntry, Pipeline, other_writers, seen_text
from etl.settings import Settings, Upstream, Window
from relay import RelayLog
from upstream import EtcdClient, PDClient, Registry, TiKVClient, tso

_REGISTERED_S = 30.0
TIDB = "tidb://"
"""In the place of a dump's URL: the TiDB of [upstream] sql-host, as it is when the copy begins."""


class _Upstream:
    """The cluster that the settings name."""

    def __init__(self, upstream: Upstream, stack: ExitStack) -> None:
        self._settings = upstream
        self.tls = tls = upstream.tls()
        self.pd = PDClient(upstream.pd_urls, tls=tls)
        stack.callback(self.pd.close)
        self.tikv = TiKVClient(self.pd, tls=tls)
        stack.callback(self.tikv.close)
        etcd = EtcdClient(upstream.pd_urls, tls=tls)
        stack.callback(etcd.close)
        self.registry = Registry(etcd)

    @classmethod
    @contextmanager
    def of(cls, upstream: Upstream) -> Iterator[Self]:
        with ExitStack() as stack:
            yield cls(upstream, stack)

    def definitions(self, ts: int) -> Definitions:
        """The schema at `ts`. Raises CopyError if there was none."""
        if ts > self.pd.tso():
            raise CopyError(
                f"the source is of {ts} ({tso.to_datetime(ts):%Y-%m-%d %H:%M:%S} UTC), which PD's clock has not"
                " reached: is it of another cluster?"
            )
        return read_definitions(self.pd, self.tikv, ts, self._settings.new_collations)

    def problems(self, ts: int, pipeline: Pipeline, window: Window) -> list[str]:
        """Why the pipeline can't begin at `ts` to replicate, in windows of at most that size."""
        found = [
            f"{seen_text(drainer)}, and may write to the same downstream: stop it first, or name it in [upstream]"
            " unrelated-drainers"
            for drainer in other_writers(pipeline, self._settings.unrelated_drainers, self.registry.drainers())
        ]
        try:
            with closing(self.planner(window)) as planner:
                check_kept(planner, ts)
        except CopyError as error:
            found.append(str(error))
        return found

    def planner(self, window: Window) -> Planner:
        """Plans windows of at most that size, to be closed."""
        return Planner(self.pd.cluster_id, window, self.pd.tso, self.registry.pumps, self.tls)


def plan_bootstrap(
    settings: Settings, url: str, options: DumplingOptions, globs: Sequence[str] = (), into: Sequence[str] = ()
) -> CopyPlan:
    """What a bootstrap from the Dumpling folder at `url`, or from TiDB itself (TIDB), would do, and in `problems` what
    hinders it. Writes nothing. Raises CopyError, DownstreamError, PDError, TiKVError, EtcdError.
    """
    source, pipeline = _source(settings, url, options), Pipeline.of(settings)
    with _Upstream.of(settings.upstream) as upstream:
        definitions = upstream.definitions(source.position)
        plan = Bootstrap(settings, source, definitions, upstream.pd.cluster_id, globs).plan(into)
        return replace(plan, problems=(*plan.problems, *upstream.problems(source.position, pipeline, settings.window)))


def run_bootstrap(
    settings: Settings,
    url: str,
    options: DumplingOptions,
    globs: Sequence[str] = (),
    into: Sequence[str] = (),
    *,
    make: MakeLoads | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> BootstrapSummary:
    """Make the settings' downstream a replica from the Dumpling folder at `url` or from TiDB (TIDB), or go on with
    that. `make` is Spark by default. Raises as `plan_bootstrap`, and CopyError for what hinders it, DdlError,
    WorkerError.
    """
    source, pipeline = _source(settings, url, options), Pipeline.of(settings)
    with _Upstream.of(settings.upstream) as upstream, ExitStack() as stack:
        hold = None
        if isinstance(source, TidbSql):
            hold = stack.enter_context(GcHold(upstream.pd, f"sluice-{pipeline.id}", source.position))
        definitions = upstream.definitions(source.position)
        bootstrap = Bootstrap(settings, source, definitions, upstream.pd.cluster_id, globs)
        problems = (*bootstrap.plan(into).problems, *upstream.problems(source.position, pipeline, settings.window))
        if problems:
            raise CopyError("\n".join(problems))
        entry = DrainerEntry(pipeline, upstream.registry, upstream.tls, upstream.pd.tso, source.position)
        stack.callback(entry.close)
        _wait_for(upstream.registry, pipeline.id, source.position)
        # They are asked again now that they keep what is needed.
        if late := upstream.problems(source.position, pipeline, settings.window):
            raise CopyError("\n".join(late))
        if make is None:
            spark = SparkLoads(settings.spark.remote, settings.relay.url, source.spec())
            stack.callback(spark.close)
            if on_progress is not None:
                on_progress(Progress(doing=f"waiting for Spark at {settings.spark.remote}"))
            spark.connect()
            make = spark
        planner = stack.enter_context(closing(upstream.planner(settings.window)))
        bootstrap.watch = Watch(lambda: _look(planner, source.position, hold))
        return bootstrap.run(make, into, on_progress)


def _look(planner: Planner, ts: int, hold: GcHold | None) -> None:
    """What the copy needs is still there, as far as that can be known. Raises CopyError."""
    if hold is not None:
        hold.check()
    try:
        check_kept(planner, ts)
    except CopyError as error:
        if not error.transient:  # a pump that doesn't answer is waited for when replication begins
            raise


def _wait_for(registry: Registry, node_id: str, ts: int) -> None:
    """Return once the registry has this pipeline at `ts`: pumps keep what comes after it. Raises CopyError."""
    deadline = time.monotonic() + _REGISTERED_S
    while (node_id, ts) not in {(drainer.node_id, drainer.max_commit_ts) for drainer in registry.drainers()}:
        if time.monotonic() > deadline:
            raise CopyError(f"the registry could not be told that {node_id} needs what was committed since {ts}")
        time.sleep(0.05)


def _source(settings: Settings, url: str, options: DumplingOptions) -> Source:
    if settings.downstream.type != "mysql":
        raise CopyError(
            f"[downstream] type is {settings.downstream.type}: only a database can be made a replica by a copy"
        )
    if url.startswith("tidb:") and url != TIDB:
        raise CopyError(f"{url}: give {TIDB} alone; where TiDB is say [upstream] sql-host and sql-port")
    return _tidb(settings.upstream, settings.relay.url) if url == TIDB else DumplingFolder.open(url, options)


def _tidb(upstream: Upstream, relay_url: str) -> TidbSql:
    """TiDB as it is now; where a copy from there was begun, as it was then."""
    if not upstream.sql_host:
        raise CopyError("[upstream] sql-host is missing: it says where TiDB is read")
    address = TidbAddress(
        upstream.sql_host, upstream.sql_port, upstream.sql_user, upstream.sql_password_env, upstream.sql_ssl_ca,
        upstream.sql_ssl_cert, upstream.sql_ssl_key, upstream.sql_ssl_verify_identity,
    )  # fmt: skip
    ledger = Ledger(RelayLog.open(relay_url).storage, JOB)
    begun = ((ledger.spec() or {}).get("asked") or {}).get("source") or {}
    now = TidbSql.now(address)
    return TidbSql.from_spec(begun) if begun == {**now.spec(), "position": begun.get("position")} else now
