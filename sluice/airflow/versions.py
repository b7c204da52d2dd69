"""Airflow's names that are elsewhere, or missing, in one of the releases from 3.1 on.

Below 3.3 Airflow has no partitions of assets (`CronPartitionTimetable` is None), and a watcher has
no store for its mark.
"""

from __future__ import annotations

from typing import Any

try:
    from airflow.sdk import (  # type: ignore[attr-defined] # not in its stub
        CronPartitionTimetable,
        CronTriggerTimetable,
        DeadlineAlert,
        DeadlineReference,
        DeltaTriggerTimetable,
        SyncCallback,
        conf,
    )
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        AirflowTaskTimeout,
    )
except ImportError:  # Airflow 3.1 and 3.2
    from airflow.configuration import conf  # type: ignore[no-redef]
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        AirflowTaskTimeout,
    )
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference, SyncCallback
    from airflow.timetables.trigger import (
        CronTriggerTimetable,
        DeltaTriggerTimetable,
    )

    CronPartitionTimetable: Any = None  # type: ignore[no-redef]

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "CronPartitionTimetable",
    "CronTriggerTimetable",
    "DeadlineAlert",
    "DeadlineReference",
    "DeltaTriggerTimetable",
    "SyncCallback",
    "conf",
]
