"""sluice grants: print the GRANT statements that the downstream's user needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluice.cli._settings import config_option, settings_of
from sluice.errors import RequestError

if TYPE_CHECKING:
    from sluice.etl.copy.definitions import SourceSchema
    from sluice.etl.settings import Settings


@click.command("grants")
@click.option("--user", metavar="'NAME'@'HOST'", help="Account ['<[downstream] user>'@'%'].")
@click.option("--tidb", is_flag=True, help="The downstream is TiDB, which needs no PROCESS.")
@config_option
@click.pass_context
def command(ctx: click.Context, *, user: str | None, tidb: bool, config: str | None) -> None:
    """Print the GRANT statements for the user of [downstream].

    They cover each database that the pipeline's rules replicate, as the upstream has them now, and
    give no rights on the server's own databases. Run it again after a database was created.
    """
    for line in needed_grants(settings_of(ctx, config), user, tidb=tidb):
        click.echo(line)


def needed_grants(settings: Settings, user: str | None = None, *, tidb: bool = False) -> list[str]:
    """Return the statements for the databases that the upstream has now.

    Raises RequestError if the downstream is no database, and errors of the upstream.
    """
    from sluice.etl.copy.copy_source_cluster import SourceCluster
    from sluice.etl.downstream.grants import grant_statements
    from sluice.etl.settings import Downstream

    target = settings.target
    if not isinstance(target, Downstream):
        raise RequestError("the downstream is no database: there are no rights to grant")
    with SourceCluster.connect(settings.upstream) as cluster:
        found = cluster.definitions(cluster.pd.tso()).of_users()
    account = user or f"'{target.user}'@'%'"
    own = target.checkpoint_schema, target.recycle_schema
    return grant_statements(account, _targets(settings, found), own, process=not tidb)


def _targets(settings: Settings, found: SourceSchema) -> set[str]:
    """Return the databases in which tables arrive."""
    rules, routes = settings.filters, settings.routes
    schemas = {
        routes.target_schema(each.name) for each in found.schemas if rules.wants_schema(each.name)
    }
    tables = [table for table in found.tables if rules.wants_table(table.schema_name, table.name)]
    return schemas | {routes.target(table.schema_name, table.name).schema for table in tables}
