"""Check whether the data meets its expectations, of tables and of the replication itself.

Expectations are kept as files and checked by Great Expectations, with its Data Docs for people.
Great Expectations takes seconds to import: only `sluice.expectations.gx` does so, inside of tasks
and commands.
"""

from sluice.expectations.results import QualityResults, QualityRun

__all__ = ["QualityResults", "QualityRun"]
