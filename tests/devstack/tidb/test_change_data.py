import asyncio

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.tidb import pb
from sluice.tidb.codec.memcomparable import encode_bytes
from tests.devstack.tidb.change_world import CLUSTER_ID, Schedule, effective, until, world
from tests.devstack.tidb.naive_change_client import NaiveClient
from tests.examples import examples

LONG = b"x" * 256


def run(scenario):
    """Run the async scenario to its end."""
    return asyncio.run(scenario)


def client_of(made, checkpoint_ts=0, start=b"", end=b""):
    return NaiveClient(
        CLUSTER_ID,
        made.regions.between,
        made.addresses,
        start,
        end,
        checkpoint_ts or made.oracle.last,
    )


async def caught_up(made, client):
    """Wait until the client has all that is committed by now."""
    ts = made.tso()

    def tick():
        client.check()
        made.tick()

    await until(lambda: client.frontier >= ts, tick)


def assert_equal(made, client):
    frontier = client.frontier
    found = {key: effective(rows) for key, rows in client.transactions(frontier).items()}
    assert {key: rows for key, rows in found.items() if rows} == made.expected(
        client.checkpoint_ts, frontier
    )
    assert client.late == []
    client.check()


async def feed(
    made, *requests, method="EventFeedV2", metadata=(("features", "stream-multiplexing"),)
):
    """Send requests on one stream; return it, to read messages from."""
    channel = grpc.aio.insecure_channel(made.addresses[1])

    async def sent():
        for request in requests:
            yield request
        await asyncio.sleep(60)

    return channel.stream_stream(
        f"/cdcpb.ChangeData/{method}",
        request_serializer=pb.cdc.ChangeDataRequest.SerializeToString,
        response_deserializer=pb.cdc.ChangeDataEvent.FromString,
    )(sent(), metadata=metadata)


def request(made, region_id=4, request_id=1, **more):
    region = made.regions.by_id(region_id)
    given = {
        "header": pb.cdc.Header(cluster_id=CLUSTER_ID, ticdc_version="8.5.0"),
        "region_id": region_id,
        "request_id": request_id,
        "region_epoch": region.meta().region_epoch if region else None,
        "checkpoint_ts": made.oracle.last,
    }
    return pb.cdc.ChangeDataRequest(**given | more)


async def events(call, count):
    """Return the next events of a stream."""
    found = []
    while len(found) < count:
        found += (await call.read()).events
    return found


def rows_of(found):
    log = pb.cdc.Event.LogType
    return [
        (log.Name(row.type), row.key, row.value, row.old_value)
        for event in found
        for row in event.entries.entries
    ]


def test_a_commit_repeats_short_values_only_and_no_old_one():
    async def scenario():
        async with world() as made:
            made.put(a=b"before", b=b"before")
            call = await feed(made, request(made))
            await events(call, 1)
            txn = made.begin({b"a": b"short", b"b": LONG})
            made.prewrite(txn)
            made.commit_all(txn)
            return rows_of(await events(call, 3))

    assert run(scenario()) == [
        ("PREWRITE", b"a", b"short", b"before"),
        ("PREWRITE", b"b", LONG, b"before"),
        ("COMMIT", b"a", b"short", b""),
        ("COMMIT", b"b", b"", b""),
    ]


def test_a_scan_gives_locks_first_then_versions_newest_first_and_an_end():
    async def scenario():
        async with world() as made:
            made.put(a=b"1")
            checkpoint = made.oracle.last
            made.put(a=b"2")
            made.put(a=LONG)
            made.put(b=None)
            made.prewrite(made.begin({b"a": None}))
            call = await feed(made, request(made, checkpoint_ts=checkpoint))
            return rows_of(await events(call, 2))

    assert run(scenario()) == [
        ("PREWRITE", b"a", b"", LONG),
        ("COMMITTED", b"a", LONG, b"2"),
        ("COMMITTED", b"a", b"2", b"1"),
        ("INITIALIZED", b"", b"", b""),
    ]


def test_one_phase_gives_committed_rows_and_rollbacks_carry_no_value():
    async def scenario():
        async with world() as made:
            call = await feed(made, request(made))
            await events(call, 1)
            made.one_phase({b"a": LONG})
            txn = made.begin({b"b": b"1"})
            made.prewrite(txn)
            made.rollback(txn)
            return rows_of(await events(call, 3))

    assert run(scenario()) == [
        ("COMMITTED", b"a", LONG, b""),
        ("PREWRITE", b"b", b"1", b""),
        ("ROLLBACK", b"b", b"", b""),
    ]


def test_an_open_lock_holds_the_resolved_timestamp_of_its_range_only():
    async def scenario():
        async with world(splits=[b"m"]) as made:
            left, right = made.regions.between(b"", b"")
            call = await feed(made, request(made, left.id, 1), request(made, right.id, 2))
            await events(call, 2)
            txn = made.begin({b"a": b"1"})
            made.prewrite(txn)
            ts = made.tick()
            # the first has the PREWRITE
            found = [(await call.read()).resolved_ts for _ in range(3)]
            resolved = {(*each.regions, each.request_id): each.ts for each in found[1:]}
            return resolved, txn.start_ts, ts, left.id, right.id

    found, start_ts, ts, left, right = run(scenario())
    assert found == {(left, 1): start_ts, (right, 2): ts}


REFUSED = {
    "cluster_id_mismatch": {"header": pb.cdc.Header(cluster_id=7, ticdc_version="8.5.0")},
    "region_not_found": {"region_id": 999},
    "epoch_not_match": {"region_epoch": pb.metapb.RegionEpoch(conf_ver=1, version=999)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_tikv_refuses_is_refused_with_its_error(name):
    async def scenario():
        async with world() as made:
            call = await feed(made, request(made, **REFUSED[name]))
            return await events(call, 1)

    (event,) = run(scenario())
    assert event.request_id == 1
    assert event.error.HasField(name)


def test_a_region_may_be_subscribed_twice_with_two_request_ids_but_not_with_one():
    async def scenario():
        async with world() as made:
            call = await feed(made, request(made), request(made, request_id=2), request(made))
            return await events(call, 3)

    found = run(scenario())
    assert [event.request_id for event in found if event.error.HasField("duplicate_request")] == [1]
    assert sorted(
        event.request_id for event in found if event.WhichOneof("event") == "entries"
    ) == [1, 2]


def test_a_deregistered_subscription_ends_with_region_not_found():
    async def scenario():
        async with world() as made:
            asked = (
                request(made),
                request(made, 0, deregister=pb.cdc.ChangeDataRequest.Deregister()),
            )
            call = await feed(made, *asked)
            found = await events(call, 1)
            while not found[-1].HasField("error"):
                found += await events(call, 1)
            return found, made.changes.subscriptions()

    found, left = run(scenario())
    assert found[-1].error.region_not_found.region_id == 4
    assert left == []


def test_an_unknown_feature_is_unimplemented():
    async def scenario():
        async with world() as made:
            # no request: grpc.aio gives INTERNAL for one that crosses the refusal
            call = await feed(made, metadata=(("features", "telepathy"),))
            with pytest.raises(grpc.RpcError) as caught:
                await call.read()
            return caught.value.code()

    assert run(scenario()) is grpc.StatusCode.UNIMPLEMENTED


def test_clients_without_a_version_get_resolved_timestamps_as_events():
    async def scenario():
        async with world() as made:
            call = await feed(made, request(made, header=None), method="EventFeed", metadata=())
            await events(call, 1)
            ts = made.tick()
            return (await events(call, 1))[0], ts

    event, ts = run(scenario())
    assert (event.region_id, event.request_id, event.resolved_ts) == (4, 1, ts)


def test_a_new_subscription_may_get_a_commit_before_its_prewrite():
    async def scenario():
        async with world() as made:
            txn = made.begin({b"a": b"1"})
            made.prewrite(txn)
            made.changes.scans_may_run.clear()
            async with client_of(made) as client:
                await until(made.changes.subscriptions)
                made.commit_all(txn)
                made.changes.scans_may_run.set()
                await caught_up(made, client)
                assert_equal(made, client)
                return client.transactions()

    assert [list(rows) for rows in run(scenario()).values()] == [[b"a"]]


ACCIDENTS = {
    "split": lambda made: made.changes.split(b"k"),
    "merge": lambda made: made.changes.merge(made.regions.at(b"").id),
    "transfer": lambda made: made.changes.transfer(made.regions.at(encode_bytes(b"a")).id, 2),
    "unknown leader": lambda made: made.changes.transfer(
        made.regions.at(encode_bytes(b"a")).id, 2, is_known=False
    ),
    "break": lambda made: made.changes.break_streams(),
    "congest": lambda made: made.changes.congest(made.regions.at(encode_bytes(b"a")).id),
    "busy": lambda made: (
        setattr(made.changes, "busy_registrations", 2),
        made.changes.break_streams(),
    ),
    "repeat": lambda made: (
        setattr(made.changes, "repeated_commands", 64),
        made.changes.break_streams(),
    ),
}


@pytest.mark.parametrize("name", ACCIDENTS)
def test_no_accident_loses_or_doubles_a_row(name):
    async def scenario():
        async with world(2, [b"m"]) as made, client_of(made) as client:
            made.put(a=b"1", z=b"1")
            await caught_up(made, client)
            txn = made.begin({b"a": LONG, b"b": b"2", b"z": b"2"})
            made.prewrite(txn, 2)
            ACCIDENTS[name](made)
            made.commit(txn)
            await asyncio.sleep(0.01)
            made.put(c=b"3")
            await until(lambda: not made.commit_secondary(txn))
            await caught_up(made, client)
            assert_equal(made, client)
            return client

    client = run(scenario())
    assert len(client.transactions()) == 3
    assert client.errors


def test_a_silent_region_sends_nothing_until_it_is_subscribed_anew():
    async def scenario():
        async with world() as made, client_of(made) as client:
            await until(lambda: client.initialized)
            made.changes.silence(4)
            before = client.frontier
            made.put(a=b"1")
            for _ in range(5):
                made.tick()
                await asyncio.sleep(0.01)
            assert client.frontier == before
            made.changes.break_streams()
            await caught_up(made, client)
            assert_equal(made, client)

    run(scenario())


def test_a_reader_that_is_too_slow_is_congested():
    async def scenario():
        async with world() as made, client_of(made) as client:
            await until(lambda: client.initialized)
            made.changes.quota_bytes = 1000
            made.put(a=b"x" * 2000)
            made.changes.quota_bytes = 1 << 20
            await caught_up(made, client)
            assert_equal(made, client)
            return client.errors

    assert run(scenario()) == ["congested"]


KEYS = [bytes((letter,)) + bytes((digit,)) for letter in b"agmt" for digit in b"123"]
VALUES = st.sampled_from([b"1", b"22", LONG, LONG * 200, None])
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=5)
TRANSACTION_STEPS = st.one_of(
    st.tuples(st.just("begin"), CHANGES),
    st.tuples(st.just("one phase"), CHANGES),
    st.tuples(
        st.sampled_from(["prewrite", "commit", "calculated", "secondary"]), st.integers(0, 3)
    ),
    st.tuples(st.sampled_from(["commit", "secondary", "rollback"]), st.integers(0, 3)),
    st.tuples(st.just("tick"), st.none()),
)
ACCIDENT_STEPS = st.one_of(
    st.tuples(st.sampled_from(["break", "busy", "repeat", "shake", "hold", "release"]), st.none()),
    st.tuples(
        st.sampled_from(["split", "merge", "congest", "to 1", "to 2"]), st.sampled_from(KEYS)
    ),
)
STEPS = st.lists(st.one_of(*[TRANSACTION_STEPS] * 4, ACCIDENT_STEPS), min_size=30, max_size=80)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 9))
def test_every_schedule_gives_the_models_transactions(steps, seed):
    async def scenario():
        async with world(2, [b"g2"]) as made, client_of(made) as client:
            play = Schedule(made, seed)
            for step, what in steps:
                await play.take(step, what)
                assert_equal(made, client)
            play.finish()
            await caught_up(made, client)
            assert_equal(made, client)
            assert client.frontier > max((commit_ts for commit_ts, _ in made.model), default=0)

    run(scenario())
