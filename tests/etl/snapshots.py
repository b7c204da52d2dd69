"""Compares a server with a recording's snapshot by meaning: the same multiset of rows in every
table.
"""

from __future__ import annotations

import gzip
import json
import struct
import urllib.parse
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.etl.mariadb_fixture import MariaDBServer


def differences(
    recording: Path, label: str, server: MariaDBServer, into: str = "{schema}"
) -> list[str]:
    """One line a table that isn't as in the snapshot, [] if all are.

    `into`: the databases' names there.
    """
    listed = next(
        s for s in json.loads((recording / "snapshots.json").read_text()) if s["label"] == label
    )
    connection = server.connect(conv={}, use_unicode=False, init_command="SET time_zone='+00:00'")
    found = []
    with connection.cursor() as cursor:
        for full in listed["tables"]:
            upstream, table = full.split(".", 1)
            schema = into.replace("{schema}", upstream)
            path = recording / "snapshots" / label / f"{urllib.parse.quote(full, safe='._-')}.jsonl"
            text = (
                path.read_text()
                if path.exists()
                else gzip.decompress(path.with_suffix(".jsonl.gz").read_bytes()).decode()
            )
            head, *lines = text.splitlines()
            names = json.loads(head)["columns"]
            cursor.execute(
                "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS WHERE"
                " TABLE_SCHEMA=%s AND TABLE_NAME=%s",
                (schema, table),
            )
            kinds = {name.decode().lower(): kind.decode() for name, kind in cursor.fetchall()}
            if sorted(kinds) != sorted(n.lower() for n in names):
                found.append(f"{full}: columns {sorted(kinds)}, {names} expected")
                continue
            use = [kinds[n.lower()] for n in names]
            select = ", ".join(
                f"{_quote(n)}+0e0" if kinds[n.lower()] == "float" else _quote(n) for n in names
            )
            cursor.execute(f"SELECT {select} FROM {_quote(schema)}.{_quote(table)}")
            got = Counter(
                tuple(_meaning(v, k) for v, k in zip(row, use)) for row in cursor.fetchall()
            )
            want = Counter(
                tuple(_meaning(v, k) for v, k in zip(json.loads(line), use)) for line in lines
            )
            if got != want:
                found.append(
                    f"{full}: missing {list((want - got).items())[:3]}, too many"
                    f" {list((got - want).items())[:3]}"
                )
    connection.close()
    return found


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _meaning(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        value = bytes.fromhex(value["hex"])
    raw = value if isinstance(value, bytes) else str(value).encode()
    if kind == "decimal":
        return Decimal(raw.decode()).normalize() + 0
    if kind == "float":
        return struct.unpack("<f", struct.pack("<f", float(raw)))[0] + 0.0
    if kind == "double":
        return float(raw) + 0.0
    if kind == "bit":
        return raw.lstrip(b"\0")
    try:
        if kind == "json":
            return json.dumps(json.loads(raw), sort_keys=True)
        if raw[:1] in b'{["' and raw[-1:] in b'}]"':
            return json.dumps(json.loads(raw), sort_keys=True)
    except ValueError:
        pass
    return raw
