"""Exclude the transactions that an operator skips and that can't be read.

What can be read is landed whatever was decided: it is left out where it is applied, and a DDL still
counts for the schema.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.landing.extract.row_extractor import BinlogDecodeError, RowExtractor


def drop_skipped_undecodable(
    batch: pa.RecordBatch, host: str, skips: Collection[int]
) -> tuple[pa.RecordBatch, list[dict[str, Any]]]:
    """Return a batch without the unreadable transactions at `skips` (TSOs), and these.

    The batch is in WINDOW_SCHEMA. `host`: the pump of the batch. Excluded transactions are
    {commit_ts, start_ts, why}.
    """
    commit_ts = batch["commit_ts"].to_numpy()
    left_out: list[dict[str, Any]] = []
    keep = np.ones(len(commit_ts), bool)
    for i in np.flatnonzero(np.isin(commit_ts, list(skips))).tolist() if skips else ():
        try:
            for _ in RowExtractor(host).extract(batch.slice(i, 1)):
                pass
        except BinlogDecodeError as error:
            keep[i] = False
            left_out.append(
                {
                    "commit_ts": int(commit_ts[i]),
                    "start_ts": batch["start_ts"][i].as_py(),
                    "why": str(error.args[0]),
                }
            )
    return (batch.filter(pa.array(keep)) if left_out else batch), left_out
