"""A relay log in S3: what is landed stays what it is, whatever becomes of uploads that were given
up.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
from relaykit import BASE, batch, land, window

from sluice.etl.apply.prepare_windows import PrepareWindows
from sluice.etl.changes.planning import PrepareOptions
from sluice.etl.landing.extract import LandRanges
from sluice.relay import RelayError, RelayLog, WindowConflictError
from sluice.relay.storage._object_store import open_object_storage
from sluice.relay.url import parse_url
from tests.object_store.proxy import Fault
from tests.object_store.s3_server import CREDENTIALS

SECRET = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture
def log(s3_server):
    log = RelayLog.open(s3_server.url())
    log._storage._prove_condition()  # the first start of a pipeline
    return log


def _impatient(log):
    """The log as a process sees it that waits half a second for a call."""
    impatient = _another(log)
    impatient._storage._call_timeout._seconds = 0.5
    return impatient


def _another(log):
    """The log as another process sees it."""
    return RelayLog(open_object_storage(parse_url(log.url), log.url))


def test_an_upload_that_was_given_up_never_replaces_the_window_that_was_landed_meanwhile(
    log, s3_server
):
    held = Fault("held", "PUT", f"{BASE}.json", times=1)
    s3_server.inject(held)
    with pytest.raises(TimeoutError):
        _impatient(log).commit(window(BASE, BASE + 20))
    chain = [
        land(log, BASE, BASE + 30, BASE + 25, token="again"),
        land(log, BASE + 30, BASE + 40, BASE + 35),
    ]
    assert held.release() == [412]
    assert list(log.windows(BASE)) == chain
    assert log.read(chain)["commit_ts"].to_pylist() == [BASE + 25, BASE + 35]


def test_a_given_up_upload_that_arrives_first_is_a_landed_window_and_the_next_attempt_is_told(
    log, s3_server
):
    held = Fault("held", "PUT", f"{BASE}.json", times=1)
    s3_server.inject(held)
    with pytest.raises(TimeoutError):
        _impatient(log).commit(window(BASE, BASE + 20))
    assert log.last() is None
    assert held.release() == [200]
    with pytest.raises(WindowConflictError):
        land(log, BASE, BASE + 30, BASE + 25, token="again")
    assert [(found.lo, found.hi) for found in log.windows(BASE)] == [(BASE, BASE + 20)]


def test_a_window_whose_answer_was_lost_is_landed(log, s3_server):
    lost = Fault("lost", "PUT", times=1)
    s3_server.inject(lost)
    landed = land(log, BASE, BASE + 20)
    assert lost.happened == 1
    assert log.last() == landed


def test_a_store_that_ignores_the_condition_is_refused_before_anything_is_landed(log, s3_server):
    s3_server.inject(Fault("without", header="If-None-Match"))
    with pytest.raises(RelayError, match="If-None-Match"):
        land(_another(log), BASE, BASE + 20, BASE + 5)
    assert log.last() is None


def test_parts_of_many_megabytes_are_read_back(log):
    rows = [batch([(BASE + 1 + n, 0)], row=random.randbytes(1 << 20)) for n in range(20)]
    part = log.write_part(BASE, BASE + 30, "t", 0, rows)
    assert part.bytes > 20 << 20
    with pytest.raises(FileExistsError):
        log.write_part(BASE, BASE + 30, "t", 0, rows)
    landed = window(BASE, BASE + 30, [part], transactions=20, changes=20)
    log.commit(landed)
    assert log.read([landed])["commit_ts"].to_pylist() == [BASE + 1 + n for n in range(20)]


def test_a_part_whose_writing_fails_is_not_there(log):
    def rows():
        yield batch([(BASE + 1, 0)])
        raise RuntimeError("the pump went away")

    with pytest.raises(RuntimeError):
        log.write_part(BASE, BASE + 30, "t", 0, rows())
    assert log._storage.names("parts") == []


def test_claims_control_purge_and_cleaning_work(log):
    windows = [land(log, BASE + 10 * n, BASE + 10 * n + 10, BASE + 10 * n + 5) for n in range(3)]
    first = log.claim("land")
    first.check()
    log.claim("land").check()
    with pytest.raises(RelayError):
        first.check()
    assert log.purge(BASE + 20) == 2
    assert list(log.windows(BASE + 20)) == windows[2:]


def test_the_environment_says_where_the_store_is_and_that_it_speaks_plain_http(
    s3_server, monkeypatch
):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    RelayLog.open(s3_server.plain_url()).claim("land").check()


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKIAEXAMPLE:{SECRET}@bucket/relay",
        "s3://AKIAEXAMPLE:hush@bucket/relay",
        "s3://hush@bucket/relay",
        "s3://AKIAEXAMPLE:hush%2Fhush@bucket/relay?region=r",
        "s3://bucket/relay?access_key=AKIAEXAMPLE&secret_key=hush",
        "s3://bucket/relay?region=r&session_token=hush",
        "gs://user:hush@bucket/relay",
        "az://container/relay?sig=hush",
        "abfss://account:hush@account.dfs.core.windows.net/relay",
        "hdfs://user:hush@namenode:8020/relay",
        "file://user:hush@host/relay",
        "nosuch://user:hush@bucket/dir",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_repeated(url):
    with pytest.raises(RelayError) as caught:
        RelayLog.open(url)
    text = str(caught.value)
    assert "hush" not in text and SECRET[:12] not in text and "AKIA" not in text
    assert "environment" in text


def test_a_url_of_a_store_without_a_condition_is_refused_with_the_hint():
    with pytest.raises(RelayError, match="NFS"):
        RelayLog.open("hdfs://namenode:8020/relay")


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
from sluice.relay import RelayLog
from sluice.etl.operate import status
from sluice.etl.settings import parse_settings
settings = parse_settings({"upstream": {"pd-urls": "http://127.0.0.1:1"}, "relay": {"url": sys.argv[1]}, "downstream": {"host": "127.0.0.1", "port": 1}})
print(settings, status(settings))
log = RelayLog.open(sys.argv[1])
print(log, vars(log), vars(log._storage), log.claim("land"), log.last())
print(open("/proc/self/cmdline").read())
for call in (lambda: log._storage.read("not/there"), lambda: RelayLog.open(sys.argv[1].replace("bucket", "nobucket")).claim("land")):
    try:
        call()
    except Exception as error:
        print(repr(error))
        logging.exception("failed")
"""  # noqa: E501


@pytest.mark.slow
def test_credentials_of_the_store_are_in_no_log_status_error_or_command_line(log, s3_server):
    land(log, BASE, BASE + 20, BASE + 5)
    env = os.environ | {"RUST_LOG": "trace", "RUST_BACKTRACE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, log.url],
        env=env,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert "FileNotFoundError" in said and "nobucket" in said and str(BASE + 20) in said
    assert SECRET not in said and SECRET[:12] not in said
    assert s3_server.proxy.keys_seen  # the store was asked with them


def test_what_spark_is_given_holds_no_credentials(log):
    jobs = pickle.dumps([LandRanges(log.url, 1), PrepareWindows(log.url, PrepareOptions())])
    assert SECRET[:12].encode() not in jobs and b"AKIA" not in jobs
