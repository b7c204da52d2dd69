"""PD: timestamps, the GC safe point, which regions and stores there are."""

from sluice.tidb.pd.client import PDClient
from sluice.tidb.pd.errors import PDError
from sluice.tidb.pd.region import Peer, Region, Store, region_from_pb

__all__ = ["PDClient", "PDError", "Peer", "Region", "Store", "region_from_pb"]
