"""Write overrides: what operators decide about one transaction, DDL or blocked batch.

Nothing here talks to running tasks: they read the overrides several times a second, and again
before every commit. One that comes too late is refused: it is written first, and then compared,
behind the lock of the checkpoint, with what is committed (`_add_override`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluice.errors import ours
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.display_units import counted
from sluice.etl.downstream import Checkpoint, DownstreamError
from sluice.etl.downstream.sinks import read_writer
from sluice.etl.operate.commands import OperateError
from sluice.etl.operate.status import locked_checkpoint, newest_checkpoint, now_ms
from sluice.etl.operate.window_view import NotLandedError, committed_at, find_window
from sluice.etl.settings import Downstream, Settings, Target
from sluice.relay import REPLACE, SKIP, Override, RelayLog
from sluice.relay.known_pumps import ACCEPTED, MISSED
from sluice.tidb import tso


def skip_transaction(
    settings: Settings, commit_ts: int, by: str = "", why: str = "", start_ts: int = 0
) -> str:
    """Leave a transaction out of the downstream, and of the relay log if it can't even be landed.

    `start_ts` names it where several transactions or DDL share the commit_ts. Raises OperateError.
    """
    relay = settings.open_relay()
    if _accept_missed_commit(relay, commit_ts):
        return (
            f"the transaction at {tso.text(commit_ts)}, which landing had passed, is left out;"
            " `sluice resume` goes on"
        )
    found = _committed_at(settings.target, relay, commit_ts)
    one = _one_of(found, commit_ts, start_ts)
    if one == "ddl":
        raise OperateError(
            f"at commit_ts {commit_ts} there is a DDL: `sluice ddl skip {commit_ts}`"
        )
    named = start_ts if len(found) > 1 or not found else 0
    override = Override(commit_ts, SKIP, (), by, why, now_ms(), named)
    note = _add_override(settings.target, relay, override, is_ddl=False)
    return f"the transaction at {tso.text(commit_ts)} is left out{_not_landed(one)}{note}"


def _accept_missed_commit(relay: RelayLog, commit_ts: int) -> bool:
    """Return whether landing has passed the transaction and stopped for it.

    It goes on without it from now on.
    """
    late = relay.known_pumps.load().late.get(commit_ts)
    if late is None or late.outcome != MISSED:
        return False
    accepted = replace(late, outcome=ACCEPTED)
    relay.known_pumps.change(lambda seen: replace(seen, late={**seen.late, commit_ts: accepted}))
    return True


def skip_ddl(settings: Settings, which: int, by: str = "", why: str = "") -> str:
    """Leave a DDL, given by commit_ts or job id, out of the downstream.

    Later rows are read with the schema it made all the same. Raises OperateError.
    """
    relay = settings.open_relay()
    commit_ts, found, start_ts = _find_ddl(settings.target, relay, which)
    override = Override(commit_ts, SKIP, (), by, why, now_ms(), start_ts)
    note = _add_override(settings.target, relay, override, is_ddl=True)
    return f"the DDL at {tso.text(commit_ts)} is left out{_not_landed(found)}{note}"


def replace_ddl(
    settings: Settings, which: int, sql: Sequence[str], by: str = "", why: str = ""
) -> str:
    """Replace a DDL, given by commit_ts or job id, by statements (or none).

    Raises OperateError.
    """
    relay = settings.open_relay()
    commit_ts, found, start_ts = _find_ddl(settings.target, relay, which)
    override = Override(commit_ts, REPLACE, tuple(sql), by, why, now_ms(), start_ts)
    note = _add_override(settings.target, relay, override, is_ddl=True)
    return (
        f"the DDL at {tso.text(commit_ts)} is replaced by {counted(len(sql), 'statement')}"
        f"{_not_landed(found)}{note}"
    )


def accept(settings: Settings, refusal: str) -> str:
    """Accept a blocked in-flight batch: its rows are written as they are upstream.

    Whatever of them is downstream is overwritten. `refusal` is the id in the error. Raises
    OperateError.
    """
    relay = settings.open_relay()
    with locked_checkpoint(settings.target, relay) as checkpoint:
        if isinstance(checkpoint, Exception):
            raise OperateError(
                f"whether a batch is blocked can't be read: {checkpoint}",
                transient=ours(checkpoint).transient,
            )
        found = checkpoint.in_flight.refused if checkpoint and checkpoint.in_flight else None
        if found is None or found.token != refusal:
            other = f"; {found.token} is: {found.text}" if found else "; no batch is blocked"
            raise OperateError(f"no blocked batch has the id {refusal!r}{other}")
        relay.change_control(lambda control: replace(control, accepted=refusal))
    return (
        f"refusal {refusal} is accepted: the next attempt writes every row of these changes as it"
        " is upstream"
    )


def _add_override(target: Target, relay: RelayLog, override: Override, *, is_ddl: bool) -> str:
    """Write an override down, and take it back with OperateError if it comes too late.

    Returns what isn't known of it, "" for nothing.
    """
    relay.overrides.add(override)
    with locked_checkpoint(target, relay) as checkpoint:
        if isinstance(checkpoint, Exception):  # commits may come, and one may have begun with it
            return (
                f"; whether it came in time is unknown now ({checkpoint}): one that came too"
                " late is taken back, and `sluice overrides list` shows when it is used"
            )
        commit_ts = override.commit_ts
        try:
            if checkpoint is None or _reached(checkpoint, is_ddl=is_ddl) < commit_ts:
                _check_not_running(target, relay, checkpoint, commit_ts)
            elif not relay.overrides.is_kept(*override.key):
                raise OperateError(
                    f"too late: what was committed at {commit_ts} was being applied meanwhile, the"
                    f" downstream is at {tso.text(checkpoint.commit_ts)}"
                )
        except OperateError:
            relay.overrides.remove(*override.key)
            raise
        if checkpoint is not None and _is_pending(checkpoint, commit_ts):
            return "; it was begun before, and what of it was executed then stays"
    return ""


def _reached(checkpoint: Checkpoint, *, is_ddl: bool) -> int:
    """Return the timestamp through which DDL, or rows, are downstream."""
    return checkpoint.commit_ts if is_ddl else checkpoint.rows_through


def _is_pending(checkpoint: Checkpoint | None, commit_ts: int) -> bool:
    return (
        checkpoint is not None
        and checkpoint.pending is not None
        and checkpoint.pending.commit_ts == commit_ts
    )


def _check_not_running(
    target: Target, relay: RelayLog, checkpoint: Checkpoint | None, commit_ts: int
) -> None:
    """Raise OperateError if a DDL is being executed, or that can't be known."""
    if not _is_pending(checkpoint, commit_ts):
        return
    last = relay.last()
    try:
        running = (
            read_writer(target, last.cluster_id)
            if last and isinstance(target, Downstream)
            else None
        )
    except (DownstreamError, OSError) as error:
        raise OperateError(
            f"the DDL at {commit_ts} is begun, and whether it is being executed can't be known:"
            f" {error}",
            transient=ours(error).transient,
        ) from None
    if running or (running is not None and not relay.control().apply_paused):
        raise OperateError(
            f"too late: the DDL at {tso.text(commit_ts)} is being executed"
            f" ({running[:300] or 'between two statements'}). When it fails, decide again; or"
            " `sluice pause apply`, and decide when no statement of it runs"
        )


def remove_override(settings: Settings, commit_ts: int, start_ts: int = 0) -> str:
    """Take an override back. Raises OperateError if there is none, or it is used."""
    relay, target = settings.open_relay(), settings.target
    with locked_checkpoint(target, relay) as checkpoint:
        if isinstance(checkpoint, Exception):
            raise OperateError(
                f"whether the override about commit_ts {commit_ts} is used is unknown now:"
                f" {checkpoint}",
                transient=ours(checkpoint).transient,
            )
        if checkpoint is None or checkpoint.commit_ts < commit_ts:
            _check_not_running(target, relay, checkpoint, commit_ts)
        elif relay.overrides.is_kept(commit_ts, start_ts):
            raise OperateError(
                f"too late: the override about commit_ts {commit_ts} is used, the downstream is at"
                f" {tso.text(checkpoint.commit_ts)}; what was left out can be brought by `sluice"
                " backfill`"
            )
        if not relay.overrides.remove(commit_ts, start_ts):
            raise OperateError(
                f"there is no override about commit_ts {commit_ts}; `sluice overrides list` shows"
                " those there are"
            )
    return f"the override about {tso.text(commit_ts)} is taken back"


def _committed_at(target: Target, relay: RelayLog, commit_ts: int) -> dict[int, str]:
    """Return by start_ts ``ddl`` or ``rows`` for all committed then; {} if it isn't landed yet.

    Raises OperateError if it is too late or there is nothing.
    """
    checkpoint = newest_checkpoint(target, relay)
    if isinstance(checkpoint, Checkpoint) and checkpoint.commit_ts >= commit_ts:
        raise OperateError(
            f"the downstream is at {tso.text(checkpoint.commit_ts)} already: what was committed at"
            f" {commit_ts} is applied"
        )
    last = relay.last()
    if last is None or commit_ts > last.hi:
        return {}
    try:
        window, exact = find_window(relay, commit_ts)
    except NotLandedError as error:
        raise OperateError(str(error)) from None
    if not exact:
        raise OperateError(
            f"nothing was committed at {commit_ts}; `sluice relay show {commit_ts} --rows` shows"
            " what is around it"
        )
    return committed_at(relay, window, commit_ts)


def _one_of(found: Mapping[int, str], commit_ts: int, start_ts: int) -> str:
    """Return what of it is meant, "" if nothing is known of it. Raises OperateError."""
    if not found:
        return ""
    if start_ts and start_ts not in found:
        raise OperateError(f"nothing that began at {start_ts} was committed at {commit_ts}")
    if not start_ts and len(found) > 1:
        several = ", ".join(f"{ts} ({kind})" for ts, kind in found.items())
        raise OperateError(
            f"several were committed at {commit_ts}; they started at {several}",
            hint=f"name one: `sluice txn skip {commit_ts} --start-ts {next(iter(found))}`, or a"
            " DDL by its job",
        )
    return found[start_ts] if start_ts else next(iter(found.values()))


def _find_ddl(target: Target, relay: RelayLog, which: int) -> tuple[int, str, int]:
    """Return where a DDL given by commit_ts or job id was committed, and what is known of it.

    The third is its start_ts if others share the commit_ts, else 0.
    """
    if which >= tso.FIRST:
        found = _committed_at(target, relay, which)
        ddls = [start_ts for start_ts, kind in found.items() if kind == "ddl"]
        if found and not ddls:
            raise OperateError(
                f"at commit_ts {which} there is no DDL but a transaction: `sluice txn skip {which}`"
            )
        if len(ddls) > 1:
            raise OperateError(f"several DDL were committed at {which}: name one by its job id")
        return which, "ddl" if ddls else "", ddls[0] if len(found) > 1 else 0
    checkpoint = newest_checkpoint(target, relay)
    first = relay.first()
    if first is not None:
        for window in relay.windows(
            checkpoint.commit_ts if isinstance(checkpoint, Checkpoint) else first.lo
        ):
            for ddl in RecordedSchema.from_window(window).ddls:
                if ddl.job_id == which:
                    found = _committed_at(target, relay, ddl.commit_ts)
                    return ddl.commit_ts, "ddl", ddl.start_ts if len(found) > 1 else 0
    raise OperateError(
        f"no DDL of job {which} is landed and not applied; give its commit_ts if it is still to"
        " come"
    )


def _not_landed(found: str) -> str:
    return "" if found else "; it isn't landed yet"
