"""Print a job in a few lines, from the document of `sluice.relay.jobs.JobStatus.to_json`."""

from __future__ import annotations

from typing import Any

from sluice.etl.display_units import format_duration, format_size


def job_lines(job: dict[str, Any]) -> list[str]:
    """Return a job's state and progress, and what it needs from people, if anything."""
    progress = job["progress"]
    doing = (
        f" ({', '.join(progress['doing'])})"
        if progress["doing"] and job["state"] == "running"
        else ""
    )
    far = f", {done(progress)}" if progress["tables"] else ""
    lines = [f"{job['id']}: {job['state']}{far}{doing}"]
    if job["state"] == "running" and progress["rows_per_s"]:
        left = progress["left_s"]
        lines.append(
            f"{progress['rows_per_s']:,.0f} rows/s, {format_size(progress['bytes_per_s'])}/s"
            f"{'' if left is None else f', about {format_duration(left)} left'}"
        )
    if job["message"]:
        lines.append(job["message"])
    if job["hint"]:
        lines.append(f"hint: {job['hint']}")
    return lines


def done(progress: dict[str, Any]) -> str:
    """Return how much of a job, or of a table, is done, from its progress.

    What is unknown is left out.
    """
    size_in_all, chunks_in_all = progress["bytes_in_all"], progress["chunks_in_all"]
    percent = f"{progress['percent']} %" if size_in_all or chunks_in_all else ""
    read = format_size(progress["bytes"]) if size_in_all else ""
    if progress["bytes"] < size_in_all:
        read = f"{read} of about {format_size(size_in_all)}"
    of = f" of {chunks_in_all:,}" if progress["chunks"] < chunks_in_all else ""
    chunks = (
        f"{progress['chunks']:,}{of}"
        f" chunk{'' if (chunks_in_all or progress['chunks']) == 1 else 's'}"
    )
    return ", ".join(part for part in (percent, f"{progress['rows']:,} rows", read, chunks) if part)
