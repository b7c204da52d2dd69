"""The kinds of binlog that TiDB sends to a pump: its field `tp`.

Source: BinlogType in tidb/proto/binlog.proto.
"""

from __future__ import annotations

from typing import Final

PREWRITE: Final = 0
COMMIT: Final = 1
ROLLBACK: Final = 2
"""A fake binlog has this kind, too; its start_ts is its commit_ts."""
