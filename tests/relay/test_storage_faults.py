"""What a relay log in an object store promises whatever the store, or the way there, does."""

from __future__ import annotations

import http.client
import random
import re
import time
from urllib.parse import urlsplit

import pytest
from relaykit import BASE, batch, land, window

from sluice.relay import RelayLog
from sluice.relay.storage._object_store import ObjectStorage, open_object_storage
from sluice.relay.url import parse_url
from sluice.relay.versioned_document import DocumentFormat, VersionedDocument
from tests.object_store.proxy import Fault
from tests.object_store.s3_server import S3Server

UNCLEAR = ["failed after", "lost", "busy", "failed", "reset"]
TEXT = DocumentFormat(
    lambda words: " ".join(words).encode(), lambda data: data.decode().split(), list, ""
)


@pytest.fixture
def storage(s3_server: S3Server) -> ObjectStorage:
    url = s3_server.url()
    storage = open_object_storage(parse_url(url), url)
    storage._prove_condition()
    return storage


@pytest.mark.parametrize("kind", UNCLEAR)
def test_what_may_have_been_done_is_done_once(
    storage: ObjectStorage, s3_server: S3Server, kind: str
) -> None:
    storage.replace("told", b"before")
    faults = [Fault(kind, "PUT", path=name, times=1) for name in ("/created", "/told", "/part")]
    s3_server.inject(*faults)
    storage.create("created", b"one")
    storage.replace("told", b"after")
    with storage.new_file("part") as sink:
        sink.write(b"rows")
    assert [storage.read(name) for name in ("created", "told", "part")] == [
        b"one",
        b"after",
        b"rows",
    ]
    assert [fault.happened for fault in faults] == [1, 1, 1]
    with pytest.raises(FileExistsError):
        storage.create("created", b"another one's")
    assert storage.read("created") == b"one"


def test_of_replacements_one_that_arrives_late_undoes_nothing(
    storage: ObjectStorage, s3_server: S3Server
) -> None:
    storage.replace("owner", b"nobody")
    held = Fault("held", "PUT", "/owner", times=1)
    s3_server.inject(held)
    late = open_object_storage(parse_url(storage.url), storage.url)
    late._call_timeout._seconds = 0.3
    with pytest.raises(TimeoutError):
        late.replace("owner", b"the one that was given up")
    storage.replace("owner", b"the new one")
    assert held.release() == [412]
    assert storage.read("owner") == b"the new one"


def test_a_store_without_if_match_replaces_all_the_same(
    storage: ObjectStorage, s3_server: S3Server
) -> None:
    storage.replace("owner", b"nobody")
    s3_server.inject(Fault("unknown condition", "PUT", header="If-Match"))
    storage.replace("owner", b"somebody")
    assert storage.read("owner") == b"somebody"


def test_a_writer_knows_its_own_file_though_it_comes_back_damaged(
    storage: ObjectStorage, s3_server: S3Server
) -> None:
    s3_server.inject(
        Fault("lost", "PUT", "/created", times=1), Fault("flipped", "GET", "/created", times=1)
    )
    storage.create("created", b"one")


@pytest.mark.quick_cases("lost")
@pytest.mark.parametrize("kind", ["failed after", "lost", "busy"])
def test_a_large_part_goes_up_in_pieces_whatever_happens_to_one(
    storage: ObjectStorage, s3_server: S3Server, kind: str
) -> None:
    faults = [Fault(kind, "PUT", path=path, times=1) for path in s3_server.pieces]
    content = random.Random(1).randbytes(18 << 20)
    s3_server.inject(*faults)
    with storage.new_file("large") as sink:
        for at in range(0, len(content), 1 << 20):
            sink.write(content[at : at + (1 << 20)])
    assert [fault.happened for fault in faults] == [1] * len(faults)
    with storage.open("large") as file:
        assert file.size() == len(content) and file.read() == content
    with pytest.raises(FileExistsError), storage.new_file("large") as sink:
        sink.write(content)


def test_a_large_part_that_the_store_refuses_is_an_error_that_names_file_and_reason(
    storage: ObjectStorage, s3_server: S3Server
) -> None:
    s3_server.inject(Fault("denied", "PUT", path=s3_server.pieces[0]))
    with (
        pytest.raises(PermissionError, match=r"writing large: .*403"),
        storage.new_file("large") as sink,
    ):
        sink.write(bytes(9 << 20))
    assert storage.size("large") is None


@pytest.mark.parametrize("kind", ["failed after", "lost"])
def test_a_large_part_whose_last_answer_is_lost_is_there(
    storage: ObjectStorage, s3_server: S3Server, kind: str
) -> None:
    last = Fault(kind, "PUT", path=s3_server.pieces_joined, times=1)
    s3_server.inject(last)
    with storage.new_file("large") as sink:
        sink.write(bytes(9 << 20))
    assert last.happened == 1
    assert storage.size("large") == 9 << 20


def test_a_large_part_that_is_given_up_leaves_nothing_in_the_store(
    storage: ObjectStorage, s3_server: S3Server
) -> None:
    with pytest.raises(RuntimeError), storage.new_file("large") as sink:
        for _ in range(20):
            sink.write(bytes(1 << 20))
        raise RuntimeError("the pump went away")
    until = time.monotonic() + 120
    while _is_uploading(s3_server):  # nobody waits for it
        assert time.monotonic() < until
        time.sleep(0.05)
    assert storage.size("large") is None


def _is_uploading(server: S3Server) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.proxy.port, timeout=60)
    connection.request("GET", "/bucket?uploads")
    found = connection.getresponse().read()
    connection.close()
    return urlsplit(server.plain_url()).path.encode()[1:] + b"/large<" in found


def test_what_is_damaged_on_the_way_is_read_once_more(s3_server: S3Server) -> None:
    relay = RelayLog.open(s3_server.url())
    landed = land(relay, BASE, BASE + 20, BASE + 5, BASE + 6)
    for kind in ("flipped", "cut"):
        s3_server.inject(
            Fault(kind, "GET", "/windows/", times=1), Fault(kind, "GET", "/parts/", times=1)
        )
        assert relay.next(BASE) == landed
        assert relay.read([landed])["commit_ts"].to_pylist() == [BASE + 5, BASE + 6]
        s3_server.heal()


def test_lists_that_lag_hide_no_window_and_no_change(s3_server: S3Server) -> None:
    relay = RelayLog.open(s3_server.url())
    chain = [land(relay, BASE, BASE + 10, BASE + 5)]
    words: VersionedDocument[list[str]] = VersionedDocument(relay.storage, "words", TEXT, kept=3)
    words.change(lambda there: [*there, "a"])
    chain.append(land(relay, BASE + 10, BASE + 20, BASE + 15))
    words.change(lambda there: [*there, "b"])
    young = Fault("lag", seconds=600)
    s3_server.proxy.listed.age(600)
    chain.append(land(relay, BASE + 20, BASE + 30, BASE + 25))
    s3_server.inject(young)
    assert relay.last() == chain[-1]
    assert relay.find(BASE + 25) == chain[-1]
    assert list(relay.windows(BASE)) == chain
    for word in "cdef":
        words.change(lambda there, word=word: [*there, word])
    assert words.load() == list("abcdef")
    s3_server.proxy.listed.age(600)
    assert relay.purge(BASE + 20) == 2
    assert relay.first() == chain[-1]
    assert relay.find(BASE) == chain[-1]


def test_an_error_says_which_store_what_how_often_and_what_to_do(
    storage: ObjectStorage, s3_server: S3Server
) -> None:
    s3_server.inject(Fault("busy", "PUT"))
    storage.store = _impatient(storage.url)
    with pytest.raises(OSError) as caught:
        storage.create("windows/x.json", b"1")
    said = str(caught.value)
    assert said.startswith(f"{storage.url}: creating windows/x.json: ")
    assert (
        "503" in said
        and "SlowDown" in said
        and re.search(r"\b3 attempts", said)
        and "put-every" in said
    )
    assert "<" not in said and "\n" not in said


def _impatient(url: str) -> object:
    from datetime import timedelta

    from sluice.relay.storage import _object_store

    retries = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=20),
        "backoff": {"init_backoff": timedelta(milliseconds=1)},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_object_store, "_RETRIES", retries)
        return open_object_storage(parse_url(url), url).store


def test_a_bucket_that_is_not_there_is_no_empty_relay_log(s3_server: S3Server) -> None:
    relay = RelayLog.open(s3_server.url().replace("//bucket/", "//nobucket/"))
    with pytest.raises(OSError, match="the bucket isn't there"):
        relay.next(BASE)


def test_a_window_costs_two_writes_and_reading_it_two_reads(s3_server: S3Server) -> None:
    relay = RelayLog.open(s3_server.url())
    land(relay, BASE, BASE + 10, BASE + 5)
    s3_server.counted()
    landed = land(relay, BASE + 10, BASE + 20, BASE + 15)
    assert s3_server.counted() == {"PUT": 2}
    assert relay.read([landed]).num_rows == 1
    assert relay.next(BASE + 10) == landed
    assert s3_server.counted() == {"GET": 2}


def test_a_part_of_many_megabytes_is_read_by_few_requests(s3_server: S3Server) -> None:
    relay = RelayLog.open(s3_server.url())
    rows = [batch([(BASE + 1 + n, 0)], row=random.Random(n).randbytes(1 << 20)) for n in range(12)]
    part = relay.write_part(BASE, BASE + 30, "t", 0, rows)
    s3_server.counted()
    assert relay.read([window(BASE, BASE + 30, [part])]).num_rows == 12
    assert s3_server.counted() == {"GET": 2}
