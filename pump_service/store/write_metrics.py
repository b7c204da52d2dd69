"""What writing costs, in the buckets of the original's histograms.

Each histogram is filled by one thread only.
"""

from __future__ import annotations

from sluice.pump_service.histogram import Histogram, SizeHistogram, doubling_bounds

_SECONDS_BOUNDS = doubling_bounds(0.00005, 20)
_BYTES_BOUNDS = doubling_bounds(16, 25)


class WriteMetrics:
    """Measure writes in seconds and bytes of payload.

    `single` is one record from its submission to its answer, `batch` a group of them; `to_disk`,
    `fsync` and `rotate` are the steps of that; `catch_up` is one pass of the indexer over the
    value log.
    """

    def __init__(self) -> None:
        self.single = Histogram(_SECONDS_BOUNDS)
        self.batch = Histogram(_SECONDS_BOUNDS)
        self.to_disk = Histogram(_SECONDS_BOUNDS)
        self.fsync = Histogram(_SECONDS_BOUNDS)
        self.rotate = Histogram(_SECONDS_BOUNDS)
        self.single_size = SizeHistogram(_BYTES_BOUNDS)
        self.batch_size = Histogram(_BYTES_BOUNDS)
        self.catch_up = Histogram(doubling_bounds(0.001, 22))
