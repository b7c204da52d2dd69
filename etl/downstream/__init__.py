"""Talk to the downstream: sessions, the checkpoint, DDL, sinks, and exclusivity.

Main types: `MySQLSession` (one connection), `Checkpoint` and `CheckpointTable` (how far the
downstream is), `Sink` in `sinks` (takes steps; one module for each kind of downstream). `ddl`
executes schema changes, `ownership` keeps other writers out. Every write checks the checkpoint row
first; docs/explanation/exactly-once.md has why changes arrive exactly once. May import: changes,
settings, relay, tidb, errors.
"""

from sluice.etl.downstream._connection import DownstreamError, LoadOutcome
from sluice.etl.downstream._statements_ahead import (
    MAX_PIPELINED,
    LoadData,
    PipeliningState,
    Query,
    StatementOutcome,
)
from sluice.etl.downstream.checkpoint import (
    Blocked,
    Checkpoint,
    CheckpointError,
    CheckpointMovedError,
    InFlight,
    PendingDdl,
)
from sluice.etl.downstream.checkpoint_table import CheckpointTable
from sluice.etl.downstream.chunk_results import ChunkResult, ChunkResults
from sluice.etl.downstream.mysql import MySQLSession, own_session_ids
from sluice.etl.downstream.optimistic import begin_optimistic
from sluice.etl.downstream.savepoint import Savepoint, SavepointFile, sync_folder
from sluice.etl.downstream.servers import (
    engines_without_transactions,
    is_same_server,
    open_session,
    tables_with_transactions,
)

__all__ = [
    "MAX_PIPELINED",
    "Blocked",
    "Checkpoint",
    "CheckpointError",
    "CheckpointMovedError",
    "CheckpointTable",
    "ChunkResult",
    "ChunkResults",
    "DownstreamError",
    "InFlight",
    "LoadData",
    "LoadOutcome",
    "MySQLSession",
    "PendingDdl",
    "PipeliningState",
    "Query",
    "Savepoint",
    "SavepointFile",
    "StatementOutcome",
    "begin_optimistic",
    "engines_without_transactions",
    "is_same_server",
    "open_session",
    "own_session_ids",
    "sync_folder",
    "tables_with_transactions",
]
