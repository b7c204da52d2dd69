"""What the store's tests all want."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.pump_service.store import segment


@pytest.fixture(autouse=True, scope="session")
def room_is_made_soon() -> Iterator[None]:
    """As after a minute of calm traffic."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "_STEADY", 2)
        yield
