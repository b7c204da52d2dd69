"""TiKV: reads at a timestamp, and what became of a transaction.

In `meta`, what TiDB keeps there of its schema.
"""

from sluice.tidb.tikv.client import TiKVClient, TiKVError
from sluice.tidb.tikv.mvcc import Mvcc, MvccLock, MvccWrite, TxnKind, TxnStatus

__all__ = ["Mvcc", "MvccLock", "MvccWrite", "TiKVClient", "TiKVError", "TxnKind", "TxnStatus"]
