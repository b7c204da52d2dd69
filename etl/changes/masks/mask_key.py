"""Read the key of masks where the settings say it is: no record and no job ever has it."""

from __future__ import annotations

import functools
import hmac
import os
from pathlib import Path

from sluice.errors import SluiceError

MIN_KEY_BYTES = 16
"""A shorter key can be guessed from one known value and what it is masked as."""
FROM_ENVIRONMENT, FROM_FILE = "env:", "file:"


class MaskKeyError(SluiceError, ValueError):
    """The key isn't where the settings say, or is too short. Never has any of it."""

    hint = (
        "every process that applies or copies needs the key of [filter.mask], Spark's workers too:"
        " `openssl rand -hex 32` makes one"
    )


@functools.lru_cache(maxsize=16)
def mask_key(place: str) -> bytes:
    """Return the key at a place: ``env:VARIABLE``, or ``file:PATH``, whose first line it is.

    Raises MaskKeyError.
    """
    if place.startswith(FROM_ENVIRONMENT):
        variable = place.removeprefix(FROM_ENVIRONMENT)
        where = f"[filter.mask] key-env: the environment variable {variable}"
        key = os.environ.get(variable, "")
    else:
        path = place.removeprefix(FROM_FILE)
        where = f"[filter.mask] key-file: {path}"
        try:
            key = Path(path).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise MaskKeyError(f"{where}: {why}") from None
    if len(key.encode()) < MIN_KEY_BYTES:
        raise MaskKeyError(f"{where} holds {len(key.encode())} bytes, fewer than {MIN_KEY_BYTES}")
    return key.encode()


def key_fingerprint(place: str) -> str:
    """Return sixteen hexadecimal digits that another key has others of. Raises MaskKeyError."""
    return hmac.digest(mask_key(place), b"key of sluice's masks", "sha256").hex()[:16]
