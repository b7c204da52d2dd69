"""What a binlog that TiDB sends to a pump is: its field `tp`.

Source: BinlogType in tidb/proto/binlog.proto.
"""

from __future__ import annotations

from typing import Final

PREWRITE: Final = 0
COMMIT: Final = 1
ROLLBACK: Final = 2
"""Also a fake binlog's, whose start_ts is its commit_ts."""
