"""What Airflow's side of the pages (`sluice.plugins`) and this side agree on. Imports neither."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sluice.errors import SluiceError, ours

__all__ = ["CALLER_HEADER", "KINDS", "PROTOCOL", "Caller", "error_document"]

PROTOCOL = 1
"""Changes with every request that an older side would misread."""
CALLER_HEADER = "x-sluice-caller"
KINDS = (
    "replicate",
    "operate",
    "archive",
    "snapshot",
    "backfill",
    "bootstrap",
    "quality",
    "restore",
    "restore_drill",
    "verify",
)
"""The DAGs that pages lead to."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a request, and what Airflow lets them do with the pipeline `pipeline`.

    `rows`: see what rows hold. `may`: kinds of DAGs that they may trigger, only for actions.
    """

    user: str
    pipeline: str
    rows: bool
    may: tuple[str, ...] = ()
    protocol: int = PROTOCOL

    def to_header(self) -> str:
        """Return the value of the header `CALLER_HEADER`, in ASCII."""
        return json.dumps(asdict(self))

    @classmethod
    def from_header(cls, value: str) -> Caller:
        """Read the header's value. Raises ValueError."""
        found = json.loads(value)
        if not isinstance(found, dict) or found.get("protocol") != PROTOCOL:
            raise ValueError(f"another protocol than {PROTOCOL}")
        try:
            return cls(**found | {"may": tuple(found["may"])})
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from None


def error_document(error: Exception) -> tuple[int, dict[str, object]]:
    """Return the status and the document of an error for people: what happened, and the hint."""
    reason: SluiceError = ours(error)
    message = str(reason.args[0]) if reason.args else type(reason).__name__
    status = 503 if reason.transient else 500 if reason.exit_code == 4 else 409
    return status, {"error": message, "hint": reason.hint, "transient": reason.transient}
