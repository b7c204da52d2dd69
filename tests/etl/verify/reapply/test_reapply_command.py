"""`sluice reapply` on a real Spark server."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli import main
from sluice.etl.apply import SparkPreparer
from sluice.etl.changes.formats.binlog_file import encode_record, read_file
from sluice.relay.jobs import DONE, Jobs
from sluice.tidb import tso
from sluice.tidb.moments import parse_moment
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.verify.reapply.reapplying import between, records

DRAINER_FILE = RECORDINGS / "shop" / "drainer-file" / "binlog-0000000000000000-20261121092320.gz"


def sluice(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit code, and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.slow
def test_a_range_of_time_goes_into_a_folder_with_one_command(
    spark_remote: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay = land(RECORDINGS / "shop", f"file://{tmp_path}/relay", 1500)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    config, other = tmp_path / "sluice.toml", tmp_path / "again.toml"
    config.write_text(
        f'[upstream]\npd-urls = "unused"\n[relay]\nurl = "{relay.url}"\n[spark]\nremote ='
        f' "{spark_remote}"\n[downstream]\nhost = "nowhere"\n'
    )
    other.write_text(f'[downstream]\ntype = "file"\n[file]\ndir = "{tmp_path}/again"\n')
    moment = tso.to_datetime(first.hi)
    asked = ("reapply", "--since", moment.isoformat(), "--to", other, "--config", config)
    since = parse_moment(moment.isoformat())
    code, said = sluice(capsys, *asked, "--table", "*.*", "--plan")
    assert (
        code == 0
        and f"since    {since} (" in said
        and f"until    {last.hi} (" in said
        and "row changes" in said
    )
    assert not Jobs(relay.storage).list()
    preparers: list[SparkPreparer] = []
    closed: list[SparkPreparer] = []
    made, close = SparkPreparer.__init__, SparkPreparer.close
    monkeypatch.setattr(
        SparkPreparer, "__init__", lambda self, *of: (preparers.append(self), made(self, *of))[1]
    )
    monkeypatch.setattr(SparkPreparer, "close", lambda self: (closed.append(self), close(self))[1])
    code, said = sluice(capsys, *asked)
    assert len(preparers) == 1 and closed == preparers, (
        "calls that are under way hold up the process's end"
    )
    assert code == 0 and f"files in {tmp_path}/again has what was committed after {since}" in said
    original = [message for _, message in read_file(DRAINER_FILE)]
    assert records(tmp_path / "again") == b"".join(
        map(encode_record, between(original, since, last.hi))
    )
    (job,) = Jobs(relay.storage).list()
    assert job.entry().state == DONE
    code, said = sluice(capsys, *asked)
    assert code == 1 and "there are binlog files in" in said
    code, said = sluice(
        capsys, "reapply", "--since", first.lo - 1, "--to", other, "--config", config, "--plan"
    )
    assert (
        code == 1 and f"stops    the relay log {relay.url} holds what was committed after" in said
    )
