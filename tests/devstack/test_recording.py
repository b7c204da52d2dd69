import gzip
import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.devstack.recording import Recording, RecordingError
from sluice.tidb import pb
from sluice.tidb.binlog_kinds import COMMIT, PREWRITE, ROLLBACK
from sluice.tidb.codec.varint import encode_uvarint
from tests.devstack.cluster_harness import RECORDINGS
from tests.examples import examples


def record(**fields):
    return pb.binlog.Binlog(**fields).SerializeToString()


def write_stream(path, payloads):
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for payload in payloads:
            stream.write(encode_uvarint(len(payload)) + payload)


@pytest.fixture
def copy(tmp_path):
    """A copy of the recording `orphans` that may be broken."""
    target = tmp_path / "recording"
    shutil.copytree(RECORDINGS / "orphans", target)
    return target


@pytest.mark.parametrize("name", ["shop", "types", "ddl", "orphans"])
def test_a_real_recording_reads_as_its_own_summary_says(name):
    head = json.loads((RECORDINGS / name / "recording.json").read_text())
    recording = Recording(RECORDINGS / name)
    records = list(recording.records())
    assert recording.cluster_id == head["cluster_id"]
    assert [r.number for r in records] == list(range(len(records)))
    for kind, tp in (("prewrite", PREWRITE), ("commit", COMMIT), ("rollback", ROLLBACK)):
        assert sum(r.tp == tp for r in records) == head[kind]
    assert len(recording.transactions()) == head["prewrite"]
    assert sum(not t.second for t in recording.transactions().values()) == len(head["dropped"])


def test_payloads_come_out_byte_for_byte_as_they_were_recorded():
    with gzip.open(RECORDINGS / "types" / "binlogs.bin.gz") as stream:
        raw = stream.read()
    again = b"".join(
        encode_uvarint(len(r.payload)) + r.payload
        for r in Recording(RECORDINGS / "types").records()
    )
    assert again == raw


@pytest.mark.slow
def test_a_cut_at_a_label_keeps_whole_transactions_up_to_it_and_nothing_later():
    recording = Recording(RECORDINGS / "shop")
    everything = recording.transactions()
    for label in recording.labels:
        records = [r for r in recording.records(label.ts) if not r.fake]
        kept = {r.start_ts for r in records}
        committed = {t.start_ts for t in everything.values() if 0 < t.commit_ts <= label.ts}
        rolled_back = {
            t.start_ts for t in everything.values() if not t.commit_ts and t.start_ts <= label.ts
        }
        assert kept == committed | rolled_back
        assert all(r.commit_ts <= label.ts for r in records)
        prewrites = sum(r.tp == PREWRITE for r in records)
        assert prewrites == len(records) - prewrites == len(kept)


def test_labels_are_resolved_by_name_timestamp_or_not_at_all():
    recording = Recording(RECORDINGS / "shop")
    assert recording.resolve("b_mid") == 470614793860415502
    assert (
        recording.resolve("470614793860415502")
        == recording.resolve(470614793860415502)
        == 470614793860415502
    )
    assert recording.resolve(None) is None
    with pytest.raises(
        RecordingError, match=r"snapshots\.json: no label 'nope'; there are: a_loaded, b_mid"
    ):
        recording.resolve("nope")


def test_transactions_without_an_end_get_the_fate_that_tikv_knows():
    unfinished = [
        t for t in Recording(RECORDINGS / "orphans").transactions().values() if not t.second
    ]
    assert len(unfinished) == 20
    assert sum(t.commit_ts > 0 and not t.write.rollback for t in unfinished) == 15
    assert sum(t.commit_ts == 0 and t.write.rollback for t in unfinished) == 5


def test_log_lines_between_the_tikv_keys_are_skipped():
    keys = dict(Recording(RECORDINGS / "ddl").meta_keys())
    assert len(keys) > 300
    assert all(key.startswith(b"m") for key in keys)


@pytest.mark.parametrize(
    "name",
    [
        "recording.json",
        "binlogs.bin.gz",
        "snapshots.json",
        "tikv-meta.jsonl.gz",
        "tikv-txn-status.jsonl",
    ],
)
def test_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    with pytest.raises(RecordingError, match=rf"{name}: missing"):
        Recording(copy)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(RecordingError, match="gone: no such folder"):
        Recording(tmp_path / "gone")


def test_a_packed_stream_that_is_cut_off_says_after_which_record(copy):
    path = copy / "binlogs.bin.gz"
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(RecordingError, match=r"binlogs\.bin\.gz, record \d+ at byte \d+ .*cut off"):
        Recording(copy).transactions()


def test_a_stream_that_ends_inside_a_record_says_where(copy):
    payloads = [r.payload for r in Recording(copy).records()][:10]
    with gzip.open(copy / "binlogs.bin.gz", "wb") as stream:
        whole = b"".join(encode_uvarint(len(p)) + p for p in payloads)
        stream.write(whole[:-3])
    at = len(whole) - len(payloads[-1]) - len(encode_uvarint(len(payloads[-1])))
    with pytest.raises(
        RecordingError, match=rf"record 9 at byte {at} .*announced, the stream ends after"
    ):
        Recording(copy).transactions()


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff\xff not protobuf",
        b"",
        record(tp=0),
        record(tp=1, start_ts=10, commit_ts=9),
        record(tp=0, start_ts=10, commit_ts=11),
        b"\x08\x07\x10\x0a\x18\x00",  # a type that doesn't exist
        record(start_ts=10, commit_ts=11),  # no type
    ],
)
def test_a_payload_that_is_no_binlog_is_named_by_its_number(copy, payload):
    good = record(tp=0, start_ts=5, commit_ts=0, prewrite_key=b"k")
    write_stream(copy / "binlogs.bin.gz", [good, payload, good])
    with pytest.raises(RecordingError, match=rf"record 1 at byte {len(good) + 1} .*no Binlog"):
        Recording(copy).transactions()


def test_a_commit_without_its_prewrite_is_an_error(copy):
    write_stream(copy / "binlogs.bin.gz", [record(tp=1, start_ts=10, commit_ts=11)])
    with pytest.raises(
        RecordingError, match="record 0: the Commit of transaction 10 comes without"
    ):
        Recording(copy).transactions()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 8000), st.integers(1, 255))
def test_damage_anywhere_in_the_packed_stream_never_passes_as_a_different_recording(position, flip):
    import tempfile
    from pathlib import Path

    source = RECORDINGS / "orphans"
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "recording"
        shutil.copytree(source, target)
        path = target / "binlogs.bin.gz"
        data = bytearray(path.read_bytes())
        data[position % len(data)] ^= flip
        path.write_bytes(data)
        try:
            found = Recording(target).transactions()
        except RecordingError as error:
            assert "binlogs.bin.gz" in str(error)
        else:  # the flip hit something that means nothing, as the time in the header
            assert found == Recording(source).transactions()


def test_broken_small_files_are_named(copy):
    (copy / "snapshots.json").write_text('[{"label": 1}]')
    with pytest.raises(
        RecordingError, match=r"snapshots\.json: not a list of label, ts and tables"
    ):
        Recording(copy)
    (copy / "recording.json").write_text("{")
    with pytest.raises(RecordingError, match=r"recording\.json: not readable as JSON"):
        Recording(copy)
