"""The connection to a MySQL-protocol downstream, and how far that downstream is."""

from etl.downstream.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointMovedError,
    CheckpointTable,
    Flight,
    PendingDdl,
    Refusal,
)
from etl.downstream.chunk_results import ChunkResult, ChunkResults
from etl.downstream.mysql import (
    AHEAD,
    Ahead,
    Done,
    DownstreamError,
    Load,
    LoadOutcome,
    MySQLSession,
    Question,
    own_sessions,
)
from etl.downstream.savepoint import Savepoint, SavepointFile, sync_folder
from etl.downstream.servers import connected, is_same_server

__all__ = [
    "AHEAD",
    "Ahead",
    "Checkpoint",
    "CheckpointError",
    "CheckpointMovedError",
    "CheckpointTable",
    "ChunkResult",
    "ChunkResults",
    "Done",
    "DownstreamError",
    "Flight",
    "Load",
    "LoadOutcome",
    "MySQLSession",
    "PendingDdl",
    "Question",
    "Refusal",
    "Savepoint",
    "SavepointFile",
    "connected",
    "is_same_server",
    "own_sessions",
    "sync_folder",
]
