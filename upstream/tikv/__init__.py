"""TiKV: reads at a timestamp, and what became of a transaction; in `meta`, what TiDB keeps there of its schema."""

from upstream.tikv.client import Lock, Mvcc, TiKVClient, TiKVError, TxnKind, TxnStatus, Write

__all__ = ["Lock", "Mvcc", "TiKVClient", "TiKVError", "TxnKind", "TxnStatus", "Write"]
