"""The relay log: immutable parts with row changes and the manifest of landed windows.

Everything the downstream ever gets is written here first. See docs/reference/files-on-disk.md.
"""

from relay.appointments import Agenda, Appointment, AppointmentExistsError, Appointments, Load, Mending, Ready, Void
from relay.control import Control
from relay.decisions import REPLACE, SKIP, Decision, DecisionExistsError, Decisions
from relay.errors import ClaimLostError, RelayCorruptError, RelayError, RelayGapError, WindowConflictError
from relay.failures import Failure
from relay.known_members import to_text
from relay.log import Claim, RelayLog
from relay.ownership import Ownership, Stop
from relay.part import Part, iter_parts, merge, read_parts
from relay.part_schema import DELETE, INSERT, PART_SCHEMA, UPDATE
from relay.records_text import RecordsText, read_records
from relay.sealed import seal_text, unseal_text
from relay.url import refuse_credentials
from relay.window import Window, hour_of
from relay.window_log import WindowLog, in_portions

__all__ = [
    "DELETE",
    "INSERT",
    "PART_SCHEMA",
    "REPLACE",
    "SKIP",
    "UPDATE",
    "Agenda",
    "Appointment",
    "AppointmentExistsError",
    "Appointments",
    "Claim",
    "ClaimLostError",
    "Control",
    "Decision",
    "DecisionExistsError",
    "Decisions",
    "Failure",
    "Load",
    "Mending",
    "Ownership",
    "Part",
    "Ready",
    "RecordsText",
    "RelayCorruptError",
    "RelayError",
    "RelayGapError",
    "RelayLog",
    "Stop",
    "Void",
    "Window",
    "WindowConflictError",
    "WindowLog",
    "hour_of",
    "in_portions",
    "iter_parts",
    "merge",
    "read_parts",
    "read_records",
    "refuse_credentials",
    "seal_text",
    "to_text",
    "unseal_text",
]
