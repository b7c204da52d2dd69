"""Check snapshots by reading every file, and remove those that are not being read."""

from __future__ import annotations

from sluice.etl.copy.snapshot_files import read_file
from sluice.etl.history.errors import SnapshotError
from sluice.etl.settings import Settings
from sluice.relay import RelayError
from sluice.relay.archive import Archive, ArchiveSnapshot, Pins
from sluice.relay.jobs import Jobs
from sluice.tidb.schema import Table

__all__ = ["check_snapshot", "forget_snapshot"]


def check_snapshot(settings: Settings, snapshot: ArchiveSnapshot) -> list[str]:
    """Read every file of a snapshot; return what is wrong with each damaged one.

    Raises OSError.
    """
    storage = Archive.open(settings.archive_url).storage
    found = []
    for table in snapshot.tables:
        definition = Table.from_json(table.table)
        for file in table.files:
            try:
                for _ in read_file(storage, file, definition):
                    pass
            except RelayError as error:
                found.append(str(error))
    return found


def forget_snapshot(settings: Settings, name: str) -> None:
    """Remove a snapshot that has no reader now.

    Raises RelayError if there is none, SnapshotError if it is being read.
    """
    archive = Archive.open(settings.archive_url)
    snapshots, holds = archive.snapshots, Pins(archive.storage)
    if snapshots.find(name) is None:
        note = snapshots.pending(name)
        if note is None:
            snapshots.get(name)
        else:
            raise SnapshotError(
                f"the snapshot {name} is being made by the job {note.job}",
                hint=f"`sluice jobs cancel {note.job}`",
            )
    _check_unread(settings, holds, name)
    holds.advance_removal(0, (name,))
    _check_unread(settings, holds, name)  # a reader that began before the floor was raised
    snapshots.forget(name)
    holds.advance_removal(0, (), gone=(name,))


def _check_unread(settings: Settings, holds: Pins, name: str) -> None:
    jobs = Jobs.for_pipeline(settings.open_relay())
    for hold in holds.all().values():
        if name in hold.snapshots and not (hold.job and jobs.is_over(hold.job)):
            raise SnapshotError(
                f"the snapshot {name} is read by {hold.what}", hint="try again when that is over"
            )
