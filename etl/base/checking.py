"""Bases looked after: every file read, and bases removed as nobody reads them."""

from __future__ import annotations

from etl.base.errors import BaseError
from etl.copy.base_files import read_file
from etl.settings import Settings
from relay import RelayError
from relay.archive import Archive, Base, Holds
from relay.jobs import Jobs
from upstream.schema import Table

__all__ = ["check_base", "forget_base"]


def check_base(settings: Settings, base: Base) -> list[str]:
    """Read every file of a base; what is wrong with each that isn't what was written. Raises OSError."""
    storage = Archive.open(settings.archive_url).storage
    found = []
    for table in base.tables:
        definition = Table.from_json(table.table)
        for file in table.files:
            try:
                for _ in read_file(storage, file, definition):
                    pass
            except RelayError as error:
                found.append(str(error))
    return found


def forget_base(settings: Settings, name: str) -> None:
    """Remove a base that nobody reads now. Raises RelayError if there is none, BaseError if somebody reads it."""
    archive = Archive.open(settings.archive_url)
    bases, holds = archive.bases, Holds(archive.storage)
    if bases.find(name) is None:
        note = bases.making(name)
        if note is None:
            bases.get(name)
        else:
            raise BaseError(
                f"the base {name} is being made by the job {note.job}", way_out=f"`sluice jobs cancel {note.job}`"
            )
    _check_unread(settings, holds, name)
    holds.raise_floor(0, (name,))
    _check_unread(settings, holds, name)  # who began before the floor was raised
    bases.forget(name)
    holds.raise_floor(0, (), gone=(name,))


def _check_unread(settings: Settings, holds: Holds, name: str) -> None:
    jobs = Jobs.of(settings.open_relay())
    for hold in holds.all().values():
        if name in hold.bases and not (hold.job and jobs.is_over(hold.job)):
            raise BaseError(f"the base {name} is read by {hold.what}", way_out="try again when that is over")
