"""Who writes to this downstream, as the registry knows it: this pipeline, and the Drainers beside it."""

from etl.ownership.first_copy import CopyAwaitedError, await_copy
from etl.ownership.other_sessions import OtherSession, sessions_writing
from etl.ownership.pipeline import OWNER_LABEL, Pipeline, writes_elsewhere
from etl.ownership.registration import DrainerEntry
from etl.ownership.sole_writer import NotSoleWriterError, SoleWriter, other_writers, seen_text
from etl.settings import downstream_name

__all__ = [
    "OWNER_LABEL",
    "CopyAwaitedError",
    "DrainerEntry",
    "NotSoleWriterError",
    "OtherSession",
    "Pipeline",
    "SoleWriter",
    "await_copy",
    "downstream_name",
    "other_writers",
    "seen_text",
    "sessions_writing",
    "writes_elsewhere",
]
