"""One core: numpy taking rows apart, bytes compressed, memory copied, and plain Python.

`decode_rows_per_s` is of rows of sysbench's widths (two little-endian numbers of 8 and 4 bytes,
texts of 120 and 60), which lie one behind the other and are taken in another order, into an array a
column: what numpy does at best where nothing has to be looked for. `lz4_mb_per_s` and
`zstd_9_mb_per_s` are bytes taken in of rows of those widths whose texts are random digits, as
sysbench's are. `python_loop_ms` is a million turns of a loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from sluice.bench.limits import Figures, Round

_ROWS = 25_000
_WIDTHS = (8, 4, 120, 60)
_COPIED_BYTES = 2**26
_TURNS = 1_000_000


@contextmanager
def processor(folder: Path) -> Iterator[Round]:
    """Measure the processor; nothing is written to `folder`."""
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, _ROWS * sum(_WIDTHS), dtype=np.uint8)
    starts = rng.permutation(_ROWS) * sum(_WIDTHS)
    rows = rng.integers(ord("0"), ord("9") + 1, (_ROWS, sum(_WIDTHS)), dtype=np.uint8)
    rows[:, : sum(_WIDTHS[:2])] = data.reshape(rows.shape)[:, : sum(_WIDTHS[:2])]
    plain = rows.tobytes()
    lz4, zstd = pa.Codec("lz4"), pa.Codec("zstd", 9)
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)

    def take(seconds: float) -> Figures:
        return {
            "decode_rows_per_s": _ROWS / _took(lambda: decoded(data, starts), seconds),
            "lz4_mb_per_s": len(plain) / _took(lambda: lz4.compress(plain), seconds) / 1e6,
            "zstd_9_mb_per_s": len(plain) / _took(lambda: zstd.compress(plain), seconds) / 1e6,
            "copy_gb_per_s": _COPIED_BYTES
            / _took(lambda: np.copyto(target, source), seconds)
            / 1e9,
            "python_loop_ms": _took(_loop, seconds) * 1000,
        }

    yield take


def decoded(data: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    """Return the columns of the rows that begin at `starts`: two of numbers, two of bytes.

    Those of bytes are rows x width.
    """
    columns, at = [], 0
    for width in _WIDTHS:
        cells = np.lib.stride_tricks.sliding_window_view(data, width)[starts + at]
        columns.append(cells.view(f"<i{width}")[:, 0] if width in (4, 8) else cells)
        at += width
    return columns


def _loop() -> int:
    total = 0
    for number in range(_TURNS):
        total += number & 7
    return total


def _took(call: Callable[[], object], seconds: float) -> float:
    """Return the seconds of a call."""
    calls = 0
    began = time.perf_counter()
    while not calls or time.perf_counter() - began < seconds:
        call()
        calls += 1
    return (time.perf_counter() - began) / calls
