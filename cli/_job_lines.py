"""A job in a few lines, from what `relay.jobs.JobStatus.to_json` says."""

from __future__ import annotations

from typing import Any

from cli._sizes import duration, size


def job_lines(job: dict[str, Any]) -> list[str]:
    """How it stands and how far it is; what it needs from people, if anything."""
    progress = job["progress"]
    doing = f" ({', '.join(progress['doing'])})" if progress["doing"] and job["state"] == "running" else ""
    lines = [f"{job['id']}: {job['state']}, {done(progress)}{doing}"]
    if job["state"] == "running" and progress["rows_per_s"]:
        left = progress["left_s"]
        lines.append(
            f"{progress['rows_per_s']:,.0f} rows/s, {size(progress['bytes_per_s'])}/s"
            f"{'' if left is None else f', {duration(left)} left'}"
        )
    if job["said"]:
        lines.append(job["said"])
    if job["way_out"]:
        lines.append(f"way out: {job['way_out']}")
    return lines


def done(progress: dict[str, Any]) -> str:
    """How much is done of what there is."""
    if not progress["tables"]:
        return "nothing is done yet"
    in_all = f" of {size(progress['bytes_in_all'])}" if progress["bytes_in_all"] else ""
    return (
        f"{progress['percent']} %{in_all}, {progress['rows']:,} rows, {progress['chunks']:,} of"
        f" {progress['chunks_in_all']:,} chunks"
    )
