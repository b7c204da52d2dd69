"""Who writes to this downstream, as the registry knows it: this pipeline, and the Drainers beside it."""

from etl.ownership.registration import OWNER_LABEL, DrainerEntry, downstream_name, pipeline_id
from etl.ownership.sole_writer import NotSoleWriterError, SoleWriter, other_writers, seen_text

__all__ = [
    "OWNER_LABEL",
    "DrainerEntry",
    "NotSoleWriterError",
    "SoleWriter",
    "downstream_name",
    "other_writers",
    "pipeline_id",
    "seen_text",
]
