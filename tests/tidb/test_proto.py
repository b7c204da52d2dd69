"""The messages against byte vectors, field by field and byte for byte."""

import subprocess
import sys
from pathlib import Path

import pytest

from sluice.tidb import genproto, pb

VECTORS = [
    ("P01", pb.binlog.Binlog, "08001000180038004000"),
    ("P02", pb.binlog.Binlog, "0802108680808df4e5c2d305188680808df4e5c2d30538004000"),
    ("P03", pb.binlog.Binlog, "0801106418c80138004000"),
    ("P04", pb.binlog.Binlog, "08021064180038004000"),
    (
        "P05",
        pb.binlog.Binlog,
        "0801106418c8013219637265617465207461626c65207465737428696420696e742938014000",
    ),
    ("P06", pb.binlog.TableMutation, "0800120e08000804020874657374080609023800"),
    ("P07", pb.binlog.PrewriteValue, "080012140800120e08000804020874657374080609023800"),
    (
        "P08",
        pb.binlog.Binlog,
        (
            "08001064180022137480000000000000005f7280000000000000002a18080012140800120e0800080402087465737408060902"
            "380038004000"
        ),
    ),
    (
        "P09",
        pb.binlog.TableMutation,
        "082d1207080208040202611a120802080208040202610802080208040202633209080208020804020263380038013804",
    ),
    ("P10", pb.pump.WriteBinlogReq, "0801120b0801106418c80138004000"),
    ("P11", pb.pump.PullBinlogReq, "08011200"),
    ("P12", pb.pump.PullBinlogReq, "080112021064"),
    ("P13", pb.pump.PullBinlogResp, "0a160a00120b0801106418c801380040002205086410c801"),
]


@pytest.mark.parametrize(
    ("name", "message", "wire"), VECTORS, ids=[vector[0] for vector in VECTORS]
)
def test_a_parsed_vector_serialises_to_the_same_bytes_and_has_no_unknown_fields(
    name, message, wire
):
    parsed = message.FromString(bytes.fromhex(wire))
    assert parsed.SerializeToString().hex() == wire
    before = parsed.ByteSize()
    parsed.DiscardUnknownFields()
    assert parsed.ByteSize() == before


def test_binlogs_built_field_by_field_come_out_as_tidb_writes_them():
    wire = {name: value for name, _, value in VECTORS}
    row = bytes.fromhex("0800080402087465737408060902")
    mutation = pb.binlog.TableMutation(table_id=0, inserted_rows=[row], sequence=[pb.binlog.Insert])
    assert mutation.SerializeToString().hex() == wire["P06"]
    value = pb.binlog.PrewriteValue(schema_version=0, mutations=[mutation])
    assert value.SerializeToString().hex() == wire["P07"]
    prewrite = pb.binlog.Binlog(
        tp=pb.binlog.Prewrite,
        start_ts=100,
        commit_ts=0,
        prewrite_key=bytes.fromhex("7480000000000000005f728000000000000000"),
        prewrite_value=value.SerializeToString(),
        ddl_job_id=0,
        ddl_schema_state=0,
    )
    assert prewrite.SerializeToString().hex() == wire["P08"]
    commit = pb.binlog.Binlog(
        tp=pb.binlog.Commit, start_ts=100, commit_ts=200, ddl_job_id=0, ddl_schema_state=0
    )
    assert commit.SerializeToString().hex() == wire["P03"]
    pull = pb.pump.PullBinlogReq(clusterID=1, startFrom=pb.pump.Pos(offset=100))
    assert pull.SerializeToString().hex() == wire["P12"]
    answer = pb.pump.PullBinlogResp(
        entity=pb.pump.Entity(
            pos=pb.pump.Pos(),
            payload=commit.SerializeToString(),
            meta=pb.pump.Meta(startTs=100, commitTs=200),
        )
    )
    assert answer.SerializeToString().hex() == wire["P13"]


def test_a_packed_sequence_is_understood_too():
    parsed = pb.binlog.TableMutation.FromString(bytes.fromhex("08013a03000104"))
    assert list(parsed.sequence) == [pb.binlog.Insert, pb.binlog.Update, pb.binlog.DeleteRow]
    assert parsed.SerializeToString().hex() == "0801380038013804"


def test_an_absent_bytes_field_is_told_from_an_empty_one():
    assert not pb.binlog.Binlog.FromString(bytes.fromhex("0800")).HasField("ddl_query")
    assert pb.binlog.Binlog.FromString(bytes.fromhex("08003200")).HasField("ddl_query")


def test_a_compare_with_revision_zero_is_written():
    compare = pb.etcd.Compare(target=pb.etcd.Compare.MOD, key=b"k", mod_revision=0)
    assert compare.SerializeToString().endswith(bytes.fromhex("3000"))


def test_the_generated_modules_belong_to_the_proto_files_here(tmp_path: Path):
    package = tmp_path / "upstream"
    package.mkdir()
    (package / "proto").symlink_to(Path(genproto.__file__).parent / "proto")
    fresh = {path.name: path.read_text() for path in genproto.generate(package)}
    present = {
        path.name: path.read_text()
        for path in (Path(genproto.__file__).parent / "_pb").glob("*_pb2.py")
    }
    assert present == {name: text for name, text in fresh.items() if name.endswith("_pb2.py")}, (
        "run python -m sluice.tidb.genproto"
    )


def test_reading_a_message_loads_no_grpc():
    code = (
        "import sys; from sluice.tidb import pb, tso; assert pb.binlog.Binlog(); print('grpc' in"
        " sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_of_the_room_exists():
    import sluice.tidb

    for name in sluice.tidb.__all__:
        assert getattr(sluice.tidb, name) is not None
