"""Read TiDB's changes, and its tables of the past, in Spark sessions of your own.

Sluice must be installed in the Python of the driver, or of the Spark Connect server, and in that of
the workers.
"""

from sluice.spark.as_of import tables_as_of
from sluice.spark.data_source import SluiceDataSource, register
from sluice.spark.query import ChangesError

__all__ = ["ChangesError", "SluiceDataSource", "register", "tables_as_of"]
