"""What writing costs, in the buckets of the original's histograms. Each histogram is filled by one thread only."""

from __future__ import annotations

from pump_service.histogram import Histogram, SizeHistogram, doubling

_SECONDS = doubling(0.00005, 20)
_BYTES = doubling(16, 25)


class WriteTimings:
    """`single` is one record from its submission to its answer, `batch` a group of them, `to_disk`, `fsync` and
    `rotate` the steps of that, `catch_up` one pass of the indexer over the value log. Seconds, and bytes of payload.
    """

    def __init__(self) -> None:
        self.single = Histogram(_SECONDS)
        self.batch = Histogram(_SECONDS)
        self.to_disk = Histogram(_SECONDS)
        self.fsync = Histogram(_SECONDS)
        self.rotate = Histogram(_SECONDS)
        self.single_size = SizeHistogram(_BYTES)
        self.batch_size = Histogram(_BYTES)
        self.catch_up = Histogram(doubling(0.001, 22))
