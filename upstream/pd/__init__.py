"""PD: timestamps, the GC safe point, which regions and stores there are."""

from upstream.pd.client import PDClient
from upstream.pd.errors import PDError
from upstream.pd.region import Peer, Region, Store, region_from_pb

__all__ = ["PDClient", "PDError", "Peer", "Region", "Store", "region_from_pb"]
