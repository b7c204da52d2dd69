"""Is the data what it should be? Expectations of tables and of the replication itself, kept as
files, looked at by Great Expectations, with its Data Docs for people.

Great Expectations takes seconds to import: only `sluice.expectations.gx` does so, inside of tasks
and commands.
"""

from sluice.expectations.results import QualityResults, QualityRun

__all__ = ["QualityResults", "QualityRun"]
