"""Open the sink that past windows go to.

Check whether it is free for them, and how far the job is there. It is never the running pipeline's,
and never one with another writer's transactions.
"""

from __future__ import annotations

from pathlib import Path

from sluice.etl.downstream import Checkpoint, CheckpointError, SavepointFile
from sluice.etl.downstream.sinks import DrainerTakeover, Sink, open_sink
from sluice.etl.downstream.sinks import file as file_sink
from sluice.etl.downstream.sinks import kafka as kafka_sink
from sluice.etl.settings import Downstream, File, Kafka, Settings
from sluice.etl.verify.reapply import _target_checks
from sluice.etl.verify.reapply.window_range import ReplayWindows


class ReplayTarget:
    """The downstream of `own`.

    `own` are the settings of the running `pipeline` but for the downstream and its rules; `since`
    (TSO) is where the range begins.
    """

    def __init__(self, pipeline: Settings, own: Settings, cluster_id: int, since: int) -> None:
        self._pipeline = pipeline
        self._own = own
        self._cluster_id = cluster_id
        self._since = since

    def begun(self, job: str) -> Checkpoint | None:
        """Return the job's position there; None if it has not begun, or has another owner.

        Raises DownstreamError, OSError.
        """
        target = self._own.target
        if isinstance(target, Downstream):
            return _target_checks.checkpoint_of_job(target, self._cluster_id, job)
        try:
            found = _savepoint(target, self._cluster_id, job).load()
        except CheckpointError:
            return None
        return found.checkpoint if found else None

    def problems(self, found: ReplayWindows) -> list[str]:
        """Return why nothing may be written there by a job that begins.

        Raises DownstreamError, KafkaUnavailableError, ApplyError, OSError.
        """
        match self._own.target:
            case Downstream():
                return _target_checks.target_problems(self._pipeline, self._own, found, self._since)
            case File() as folder:
                return [
                    *self._same_folder(folder),
                    *self._unknown_savepoint(),
                    *_used_folder(folder),
                ]
            case Kafka() as topic:
                return [
                    *self._same_topic(topic),
                    *self._unknown_savepoint(),
                    *_used_topic(topic, self._cluster_id),
                ]

    def notes(self) -> list[str]:
        """Return what to know before it begins."""
        if not isinstance(self._own.target, Downstream):
            return []
        note = _target_checks.target_note(self._own, self._cluster_id, self._since)
        return [note] if note else []

    def open(self, job: str) -> Sink:
        """Open the sink for this job alone.

        It writes the owner first: a topic's messages don't name it.
        """
        target = self._own.target
        sink = open_sink(self._own, self._cluster_id, job)
        if isinstance(sink, DrainerTakeover):
            sink.set_guard(_target_checks.JobCheckpointGuard(job, self._since))
        if not isinstance(target, Downstream) and self.begun(job) is None:
            savepoint = _savepoint(target, self._cluster_id, job)
            savepoint.path.parent.mkdir(parents=True, exist_ok=True)
            savepoint.save(Checkpoint(self._since), None, 0)
        return sink

    def _unknown_savepoint(self) -> list[str]:
        target = self._own.target
        assert not isinstance(target, Downstream)
        savepoint = _savepoint(target, self._cluster_id, "")
        try:
            there = savepoint.path.exists() and savepoint.load() is not None
        except CheckpointError as error:
            return [str(error)]
        return (
            [
                f"there is a savepoint of a pipeline or a Drainer, {savepoint.path}: give the job"
                " its own"
            ]
            if there
            else []
        )

    def _same_folder(self, folder: File) -> list[str]:
        running = self._pipeline.target
        if isinstance(running, File) and Path(folder.dir).resolve() == Path(running.dir).resolve():
            return [
                f"the pipeline writes its files to {folder.dir}: give the job a folder of its own"
            ]
        return []

    def _same_topic(self, topic: Kafka) -> list[str]:
        running = self._pipeline.target
        if isinstance(running, Kafka) and kafka_sink.is_same_topic(
            topic, running, self._cluster_id
        ):
            return ["the pipeline writes to this topic: give the job one of its own"]
        return []


def _savepoint(target: File | Kafka, cluster_id: int, job: str) -> SavepointFile:
    if isinstance(target, File):
        return file_sink.savepoint_file(target, cluster_id, job)
    return kafka_sink.savepoint_file(target, cluster_id, job)


def _used_folder(folder: File) -> list[str]:
    if file_sink.is_unused(folder):
        return []
    return [f"there are binlog files in {folder.dir} already: give the job an empty folder"]


def _used_topic(topic: Kafka, cluster_id: int) -> list[str]:
    if kafka_sink.is_unused(topic, cluster_id):
        return []
    name = topic.topic or f"{cluster_id}_obinlog"
    return [f"there are messages in the topic {name} already: give the job an empty one"]
