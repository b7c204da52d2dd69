"""Keep other writers out: identify this pipeline, and find Drainers and sessions beside it."""

from sluice.etl.downstream.ownership.bootstrap_gate import BootstrapPending, require_bootstrap_done
from sluice.etl.downstream.ownership.exclusivity import (
    OtherWriterError,
    WriterExclusivity,
    describe_drainer,
    other_writers,
)
from sluice.etl.downstream.ownership.other_sessions import OtherSession, sessions_writing
from sluice.etl.downstream.ownership.pipeline import (
    OWNER_LABEL,
    PipelineIdentity,
    describe_pipeline,
    writes_elsewhere,
)
from sluice.etl.downstream.ownership.registration import RegistryHeartbeat
from sluice.etl.settings import downstream_name

__all__ = [
    "OWNER_LABEL",
    "BootstrapPending",
    "OtherSession",
    "OtherWriterError",
    "PipelineIdentity",
    "RegistryHeartbeat",
    "WriterExclusivity",
    "describe_drainer",
    "describe_pipeline",
    "downstream_name",
    "other_writers",
    "require_bootstrap_done",
    "sessions_writing",
    "writes_elsewhere",
]
