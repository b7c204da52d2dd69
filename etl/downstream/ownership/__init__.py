"""Keep other writers out: identify this pipeline, and find Drainers and sessions beside it.

What finds them loads on first use: each command's first line names the pipeline, and needs no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.etl.downstream.ownership.pipeline import (
    OWNER_LABEL,
    PipelineIdentity,
    describe_pipeline,
    writes_elsewhere,
)
from sluice.etl.lazy_exports import lazy_getattr
from sluice.etl.settings import downstream_name

if TYPE_CHECKING:
    from sluice.etl.downstream.ownership.bootstrap_gate import (
        BootstrapPending,
        require_bootstrap_done,
    )
    from sluice.etl.downstream.ownership.exclusivity import (
        OtherWriterError,
        WriterExclusivity,
        describe_drainer,
        other_writers,
    )
    from sluice.etl.downstream.ownership.other_sessions import OtherSession, sessions_writing
    from sluice.etl.downstream.ownership.registration import RegistryHeartbeat

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

__getattr__ = lazy_getattr(
    __name__,
    {
        "BootstrapPending": "sluice.etl.downstream.ownership.bootstrap_gate",
        "require_bootstrap_done": "sluice.etl.downstream.ownership.bootstrap_gate",
        "OtherWriterError": "sluice.etl.downstream.ownership.exclusivity",
        "WriterExclusivity": "sluice.etl.downstream.ownership.exclusivity",
        "describe_drainer": "sluice.etl.downstream.ownership.exclusivity",
        "other_writers": "sluice.etl.downstream.ownership.exclusivity",
        "OtherSession": "sluice.etl.downstream.ownership.other_sessions",
        "sessions_writing": "sluice.etl.downstream.ownership.other_sessions",
        "RegistryHeartbeat": "sluice.etl.downstream.ownership.registration",
    },
)
