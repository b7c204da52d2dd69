"""The error every codec module raises."""

from sluice.errors import SluiceError


class CodecError(SluiceError, ValueError):
    """Bytes that violate the format, or a value that the format can't hold.

    `position` is the byte offset in the decoded buffer, None when encoding.
    """

    hint = "leave the transaction out: `sluice txn skip`"

    def __init__(self, what: str, position: int | None = None) -> None:
        super().__init__(what if position is None else f"{what} at byte {position}")
        self.what = what
        self.position = position
