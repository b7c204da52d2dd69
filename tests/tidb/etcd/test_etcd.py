"""The etcd client against a real etcd."""

import threading
import time

import grpc
import pytest

from sluice.tidb import pb
from sluice.tidb.etcd import EtcdClient, EtcdError, EtcdWatch, WatchBatch
from sluice.tidb.rpc import open_channel


def _compact(url: str, revision: int) -> None:
    with open_channel(url) as channel:
        channel.unary_unary(
            "/etcdserverpb.KV/Compact",
            request_serializer=pb.etcd.CompactionRequest.SerializeToString,
            response_deserializer=pb.etcd.CompactionResponse.FromString,
        )(pb.etcd.CompactionRequest(revision=revision, physical=True), timeout=60)


def _changes(batch: WatchBatch) -> list[tuple[str, bytes | None]]:
    return [(event.item.key, None if event.deleted else event.item.value) for event in batch.events]


def _collect(watch: EtcdWatch, wanted: int) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    while len(found) < wanted:
        found += _changes(next(watch))
    return found


def test_a_key_is_created_once_and_updated_only_if_it_exists(etcd_url):
    with EtcdClient(etcd_url) as client:
        assert client.get("/t/a") is None
        assert not client.update("/t/a", b"0")
        assert client.create("/t/a", b"1")
        assert not client.create("/t/a", b"2")
        assert client.get("/t/a").value == b"1"
        assert client.update("/t/a", b"3")
        found = client.get("/t/a")
        assert (found.value, found.version) == (b"3", 2)
        assert found.mod_revision > found.create_revision


def test_a_prefix_lists_its_keys_and_no_neighbours(etcd_url):
    with EtcdClient(etcd_url) as client:
        for key in ["/p/b", "/p/a", "/p0", "/o/z", "/p/\U0001f40c"]:
            client.put(key, key.encode())
        revision = client.put("/q", b"")
        listing = client.range_prefix("/p/")
        assert [item.key for item in listing.items] == ["/p/a", "/p/b", "/p/\U0001f40c"]
        assert listing.revision == revision


def test_delete_says_whether_there_was_something(etcd_url):
    with EtcdClient(etcd_url) as client:
        client.put("/d/1", b"")
        client.put("/d/2", b"")
        client.put("/e", b"")
        assert client.delete("/d/1")
        assert not client.delete("/d/1")
        assert client.get("/d/2") is not None
        assert client.get("/e") is not None


def test_a_watch_without_a_start_begins_with_what_is_there(etcd_url):
    with EtcdClient(etcd_url) as client:
        client.put("/w/a", b"1")
        watch = client.watch_prefix("/w/")
        first = next(watch)
        assert first.resync
        assert _changes(first) == [("/w/a", b"1")]
        client.put("/w/b", b"2")
        client.put("/other", b"")
        client.delete("/w/a")
        assert _collect(watch, 2) == [("/w/b", b"2"), ("/w/a", None)]


def test_a_watch_from_a_revision_gives_all_changes_since(etcd_url):
    with EtcdClient(etcd_url) as client:
        start = client.put("/w/a", b"1")
        client.put("/w/a", b"2")
        client.put("/w/a", b"3")
        watch = client.watch_prefix("/w/", start)
        batch = next(watch)
        assert not batch.resync
        assert (_changes(batch) + _collect(watch, 3 - len(batch.events)))[:3] == [
            ("/w/a", b"1"),
            ("/w/a", b"2"),
            ("/w/a", b"3"),
        ]


def test_a_watch_whose_start_was_compacted_away_begins_anew_with_what_is_there(etcd_url):
    with EtcdClient(etcd_url) as client:
        start = client.put("/w/gone", b"1")
        client.delete("/w/gone")
        client.put("/w/a", b"1")
        last = client.put("/w/a", b"2")
        _compact(etcd_url, last)
        watch = client.watch_prefix("/w/", start)
        batch = next(watch)
        assert batch.resync
        assert _changes(batch) == [("/w/a", b"2")]
        client.put("/w/a", b"3")
        assert _collect(watch, 1) == [("/w/a", b"3")]


def test_close_ends_a_watch_that_waits(etcd_url):
    client = EtcdClient(etcd_url)
    watch = client.watch_prefix("/nothing/")
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(watch))
    thread.start()
    until = time.monotonic() + 60
    while not seen:
        assert time.monotonic() < until
        time.sleep(0.01)
    client.close()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert [batch.resync for batch in seen] == [True]
    with pytest.raises(EtcdError, match="closed"):
        client.get("/x")
    with pytest.raises(EtcdError, match="closed"):
        client.watch_prefix("/x")


def test_a_watch_lives_through_a_restart_of_etcd_and_misses_nothing(etcd_process):
    with EtcdClient(etcd_process.url) as client:
        watch = client.watch_prefix("/w/")
        next(watch)
        client.put("/w/a", b"1")
        assert _collect(watch, 1) == [("/w/a", b"1")]
        etcd_process.kill()
        etcd_process.start()
        with EtcdClient(etcd_process.url) as other:
            other.put("/w/a", b"2")
        assert _collect(watch, 1) == [("/w/a", b"2")]


def test_a_watch_notices_that_etcd_lost_its_data(etcd_process):
    with EtcdClient(etcd_process.url) as client:
        for _ in range(5):
            client.put("/w/a", b"1")
        watch = client.watch_prefix("/w/")
        assert _changes(next(watch)) == [("/w/a", b"1")]
        client.put("/w/a", b"2")
        assert _collect(watch, 1) == [("/w/a", b"2")]
        etcd_process.kill()
        etcd_process.wipe()
        etcd_process.start()
        batch = next(watch)
        assert batch.resync
        assert batch.events == ()


def test_an_address_that_is_down_is_passed_over_and_none_left_is_an_error(etcd_url):
    with EtcdClient(["http://127.0.0.1:1", etcd_url]) as client:
        client.put("/x", b"1")
        assert client.get("/x").value == b"1"
    with EtcdClient("http://127.0.0.1:1", timeout_s=0.5) as client:
        begin = time.monotonic()
        with pytest.raises(EtcdError, match=r"127\.0\.0\.1:1.*UNAVAILABLE"):
            client.get("/x")
        assert time.monotonic() - begin < 30


def test_a_create_whose_answer_was_lost_counts_as_created(etcd_url, monkeypatch):
    """The first attempt reaches etcd, its answer doesn't come back."""
    with EtcdClient(etcd_url) as client:
        original = client._endpoint
        lost = []

        class Lossy:
            def __init__(self, channel):
                self._channel = channel

            def unary_unary(self, method, **kinds):
                real = self._channel.unary_unary(method, **kinds)

                def call(request, timeout):
                    answer = real(request, timeout=timeout)
                    if method.endswith("Txn") and not lost:
                        lost.append(answer.succeeded)
                        raise _Unavailable()
                    return answer

                return call

        class _Unavailable(grpc.RpcError, grpc.Call):
            def code(self):
                return grpc.StatusCode.UNAVAILABLE

            def details(self):
                return "connection reset"

            add_callback = cancel = initial_metadata = is_active = time_remaining = (
                trailing_metadata
            ) = None

        monkeypatch.setattr(client, "_endpoint", lambda: (etcd_url, Lossy(original()[1])))
        assert client.create("/c", b"mine")
        assert lost == [True]
        assert not client.create("/c", b"other")
