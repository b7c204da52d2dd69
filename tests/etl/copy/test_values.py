"""Values as servers print them, as the binlog has them."""

from __future__ import annotations

import pyarrow as pa

from sluice.etl.copy._values import typed_array
from sluice.tidb.column_types import FLAG_ZEROFILL
from sluice.tidb.schema import Column


def test_a_decimal_that_a_server_fills_up_with_zeros_is_what_the_binlog_has() -> None:
    texts = [b"0000000000.01", b"9999999999.99", b"0000000000.00", b"0000000010.50", None]
    raw = pa.array(texts, pa.large_binary())
    filled = Column(1, "price", 0, 246, flag=FLAG_ZEROFILL, flen=12, decimal=2)
    assert typed_array(filled, raw).to_pylist() == ["0.01", "9999999999.99", "0.00", "10.50", None]
