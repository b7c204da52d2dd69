from collections.abc import Sequence
from typing import Any

from sluice.pump_service.capture.kernel.plain import Target

EDITION: int

def convert(
    changes: Sequence[Any], begin: int, targets: dict[int, Target | None], room: int, /
) -> tuple[int, int, int]: ...
