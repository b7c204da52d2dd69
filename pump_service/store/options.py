"""Define the store's settings, as `[storage]` and `[storage.kv]` of the original's pump.toml do."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20
MAX_QUEUED = 262_144
"""Records queued for the index, about 130 bytes each; more would cost memory and gain nothing."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Set LevelDB (`[storage.kv]`), bytes.

    Goleveldb's compaction triggers don't exist in LevelDB.
    """

    block_cache_capacity: int = 8 * MIB
    block_restart_interval: int = 16
    block_size: int = 4096
    compaction_table_size: int = 64 * MIB
    write_buffer: int = 64 * MIB
    compaction_l0_trigger: int = 8
    """Garbage collection pauses while level 0 holds this many files."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Hold all settings of a store."""

    sync_log: bool = True
    """fdatasync before a record is acknowledged. Off: acknowledged once written."""
    segment_limit: int = 500 * MIB
    """A segment that grew beyond this many bytes is sealed (`ValueLogFileSize`)."""
    kv_chan_cap: int = 131_072
    """Records queued in memory for the index; beyond, the indexer reads from the value log."""
    slow_write_threshold: float = 1.0
    """Seconds; slower writes of the value log are logged."""
    stop_write_at_available_space: int = 10 << 30
    """Bytes of free disk below which only fake binlogs are accepted."""
    space_check_interval_s: float = 3.0
    resolve_after_s: float = 1.0
    """Age of an open Prewrite at which TiKV is asked for its outcome."""
    resolve_retry_s: float = 1.0
    save_interval_s: float = 1.0
    """How often maxCommitTS and handlePointer are persisted."""
    sync_interval_s: float = 5.0
    """How often the index is synced; a start resumes from there."""
    recovery_wait_s: float = 5.0
    """How long `Store.open` waits for the replay of the value log.

    A longer replay continues in the background.
    """
    is_captured: bool = False
    """Hold what a pump captures from TiKV: whole transactions, which may share a commit_ts.

    A new data directory becomes one of captured transactions and stays one. Only what the capture
    writes moves maxCommitTS.
    """
    kv: IndexOptions = field(default_factory=IndexOptions)
