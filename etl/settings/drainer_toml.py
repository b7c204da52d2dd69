"""Convert drainer.toml, the original Drainer's settings, into sections of sluice.toml.

Every key the original knows is known here: it is taken over, or accepted with a warning why it
means nothing, or refused where leaving it out would do harm. Unknown keys are errors, as there.
Passwords are never copied: `[downstream] password-drainer-config` names the file, and the password
is read when it is needed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.errors import RequestError
from sluice.etl.changes.rules import reads_otherwise
from sluice.etl.settings.rules import is_event

Document = dict[str, Any]

_LOGS = "messages go to the log of the Airflow task"
_NO_PORT = (
    "the pipeline serves no port: its state is in Airflow, in the registry and in `sluice status`"
)
_ALWAYS = "every window goes through the relay log of [relay]"
_PLANNED = "it is planned again for each window"
_PARTIAL = 2
"""`sync-mode` of a downstream whose tables have other columns."""
_SAME_PLACE = "the checkpoint is written by the session that writes the rows"
_TOP_LEVEL_KEYS: dict[str, str | tuple[str, str]] = {
    "pd-urls": ("upstream", "pd-urls"),
    "initial-commit-ts": ("upstream", "initial-commit-ts"),
    "node-id": "the pipeline has an entry of its own in the registry, see [upstream] node-id",
    "addr": _NO_PORT,
    "advertise-addr": _NO_PORT,
    "metrics-addr": _NO_PORT,
    "metrics-interval": _NO_PORT,
    "log-level": _LOGS,
    "log-file": _LOGS,
    "log-rotate": _LOGS,
    "detect-interval": "pumps are listed " + _PLANNED.removeprefix("it is settled "),
    "compressor": "pumps send windows as Arrow, uncompressed",
    "synced-check-time": "`sluice status` shows the lag",
    "cache-binlog-count": "memory is bounded by bytes, see [window] and [apply]",
}
_SYNCER_KEYS: dict[str, str | tuple[str, str]] = {
    "ignore-txn-commit-ts": ("filter", "ignore-txn-commit-ts"),
    "ignore-schemas": ("filter", "ignore-schemas"),
    "ignore-table": ("filter", "ignore-table"),
    "replicate-do-table": ("filter", "replicate-do-table"),
    "replicate-do-db": ("filter", "replicate-do-db"),
    "worker-count": ("apply", "worker-count"),
    "sql-mode": "statements run as TiDB ran them, in a session of Sluice's own",
    "txn-batch": "a downstream transaction holds whole upstream transactions, see [apply] max-rows",
    "loopback-control": ("downstream", "loopback-control"),
    "channel-id": ("downstream", "channel-id"),
    "load-schema-snapshot": "the schema comes from TiDB's DDL jobs",
    "safe-mode": "it is switched on by itself where it is needed, and only there",
    "case-sensitive": "names never differ by case alone, as in TiDB",
    "enable-dispatch": "see [apply] mode",
    "disable-dispatch": "see [apply] mode",
    "enable-detect": "conflicts are always found",
    "disable-detect": "conflicts are always found",
}
_DOWNSTREAM_KEYS: dict[str, str | tuple[str, str]] = {
    "host": ("downstream", "host"),
    "port": ("downstream", "port"),
    "user": ("downstream", "user"),
    "kafka-addrs": ("kafka", "brokers"),
    "kafka-client-id": ("kafka", "client-id"),
    "topic-name": ("kafka", "topic"),
    "dir": ("file", "dir"),
    "retention-time": ("file", "retention-days"),
    "kafka-version": "client and broker agree on it by themselves",
    "kafka-max-messages": "the client gathers messages by itself",
    "oracle-service-name": "there is no Oracle downstream",
    "oracle-connect-string": "there is no Oracle downstream",
    "merge": "net effects are what [apply] mode = 'atomic' writes",
}
_CHECKPOINT_KEYS: dict[str, str | tuple[str, str]] = {
    "schema": ("downstream", "checkpoint-schema"),
    "table": ("downstream", "checkpoint-table"),
    "user": _SAME_PLACE,
    "password": _SAME_PLACE,
    "encrypted_password": _SAME_PLACE,
    "security": _SAME_PLACE,
    "oracle-service-name": _SAME_PLACE,
    "oracle-connect-string": _SAME_PLACE,
}
_TYPES = {
    "": "mysql",
    "mysql": "mysql",
    "tidb": "mysql",
    "file": "file",
    "pb": "file",
    "kafka": "kafka",
}
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_MAX_MESSAGE_BYTES = 1_000_000_000


class DrainerSettingsError(RequestError, ValueError):
    """A key of drainer.toml that isn't known, or can't be taken over.

    The text names the file and the key.
    """


@dataclass(slots=True)
class DrainerSettings:
    """Drainer settings; `document`: the sections of sluice.toml that the file fills.

    `warnings`: its settings that have no meaning here, a line each.
    """

    document: Document = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read_drainer(path: str | os.PathLike[str]) -> DrainerSettings:
    """Read a drainer.toml. Raises DrainerSettingsError."""
    name = os.fspath(path)
    return _DrainerTomlReader(name, _load(name)).read()


def drainer_password(path: str | os.PathLike[str]) -> str:
    """Return the downstream's password in a drainer.toml. Raises DrainerSettingsError."""
    name = os.fspath(path)
    to = _load(name).get("syncer", {}).get("to", {})
    if to.get("encrypted_password"):
        raise DrainerSettingsError(
            f"{name}: [syncer.to] encrypted_password: Sluice doesn't decrypt it (the original's key"
            " is public). Name its place with [downstream] password-env, password-file"
            " or password-connection in sluice.toml"
        )
    return str(to.get("password", ""))


def _load(name: str) -> Document:
    try:
        return tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DrainerSettingsError(f"{name}: {error}") from None


class _DrainerTomlReader:
    def __init__(self, name: str, raw: Document) -> None:
        self._name = name
        self._raw = raw
        self._found = DrainerSettings()

    def read(self) -> DrainerSettings:
        syncer = self._table(self._raw, "syncer", "syncer")
        to = self._table(syncer, "to", "syncer.to")
        kind = self._kind(str(syncer.get("db-type", syncer.get("dest-db-type", ""))))
        self._keys("", self._raw, _TOP_LEVEL_KEYS, {"security", "syncer", "data-dir"})
        self._security()
        self._keys(
            "syncer",
            syncer,
            _SYNCER_KEYS,
            {
                "to",
                "relay",
                "db-type",
                "dest-db-type",
                "sync-ddl",
                "binlog-filter-rule",
                "table-migrate-rule",
            },
        )
        self._keys(
            "syncer.relay",
            self._table(syncer, "relay", "syncer.relay"),
            {"log-dir": _ALWAYS, "max-file-size": _ALWAYS},
            set(),
        )
        self._set("downstream", "type", kind)
        self._to(kind, to)
        self._checkpoint(kind, self._table(to, "checkpoint", "syncer.to.checkpoint"))
        self._filter(syncer)
        for section in ("file", "kafka"):
            if section != kind and self._found.document.pop(section, None):
                self._warn(f"[syncer.to] has keys of a {section} downstream: db-type is {kind}")
        if kind != "mysql":
            there = self._found.document["downstream"]
            kept = ("type", "loopback-control", "channel-id")
            self._found.document["downstream"] = {key: there[key] for key in kept if key in there}
        return self._found

    def _error(self, text: str) -> DrainerSettingsError:
        return DrainerSettingsError(f"{self._name}: {text}")

    def _warn(self, text: str) -> None:
        self._found.warnings.append(f"{self._name}: {text}")

    def _set(self, section: str, key: str, value: object) -> None:
        self._found.document.setdefault(section, {})[key] = value

    def _table(self, raw: Mapping[str, Any], key: str, where: str) -> Document:
        value = raw.get(key, {})
        if not isinstance(value, dict):
            raise self._error(f"[{where}] must be a table")
        return value

    def _keys(
        self,
        section: str,
        raw: Mapping[str, Any],
        known: Mapping[str, str | tuple[str, str]],
        handled: set[str],
    ) -> None:
        where = f"[{section}] " if section else ""
        for key, value in raw.items():
            if key in handled:
                continue
            if key not in known:
                raise self._error(
                    f"unknown key {where}{key}; the Drainer has"
                    f" {', '.join(sorted({*known, *handled}))}"
                )
            goal = known[key]
            if isinstance(goal, str):
                if value not in ("", 0, False, [], {}):
                    self._warn(f"{where}{key} has no meaning for Sluice: {goal}")
            elif value not in ("", None):
                self._set(*goal, value)

    def _kind(self, text: str) -> str:
        if text not in _TYPES:
            raise self._error(
                f"[syncer] db-type = {text!r}: Sluice writes to mysql, tidb, file (or pb) and kafka"
            )
        return _TYPES[text]

    def _security(self) -> None:
        security = self._table(self._raw, "security", "security")
        for key, value in security.items():
            if key in ("ssl-ca", "ssl-cert", "ssl-key"):
                self._set("upstream", key, value)
            elif key == "cert-allowed-cn":
                self._warn(
                    "[security] cert-allowed-cn has no meaning for Sluice: no client connects to"
                    " the pipeline"
                )
            else:
                raise self._error(f"unknown key [security] {key}")

    def _to(self, kind: str, to: Document) -> None:
        self._keys(
            "syncer.to",
            to,
            _DOWNSTREAM_KEYS,
            {
                "password",
                "encrypted_password",
                "sync-mode",
                "params",
                "read-timeout",
                "zookeeper-addrs",
                "kafka-max-message-size",
                "security",
                "checkpoint",
            },
        )
        if to.get("sync-mode", 0) == _PARTIAL:
            self._warn(
                "[syncer.to] sync-mode = 2: columns that the downstream lacks are left out by rules"
                " alone; `sluice config --partial` proposes them"
            )
        elif to.get("sync-mode", 0) not in (0, 1):
            raise self._error(f"[syncer.to] sync-mode = {to['sync-mode']!r}: 1 or 2 expected")
        if to.get("zookeeper-addrs"):
            raise self._error(
                "[syncer.to] zookeeper-addrs: Kafka's brokers must be named themselves, in"
                " kafka-addrs"
            )
        if to.get("params"):
            self._warn(
                f"[syncer.to.params] {', '.join(to['params'])}: not taken over; sessions are set up"
                " as exactness needs it"
            )
        if to.get("read-timeout"):
            match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(to["read-timeout"]))
            if match is None:
                raise self._error(
                    f"[syncer.to] read-timeout = {to['read-timeout']!r}: a time like '30s' or '1m'"
                    " expected"
                )
            self._set(
                "downstream", "read-timeout-s", max(1, round(float(match[1]) * _SECONDS[match[2]]))
            )
        if to.get("kafka-max-message-size"):
            self._set(
                "kafka",
                "max-message-bytes",
                min(int(to["kafka-max-message-size"]), _MAX_MESSAGE_BYTES),
            )
        if to.get("password") or to.get("encrypted_password"):
            self._set("downstream", "password-drainer-config", str(Path(self._name).absolute()))
        for key, value in self._table(to, "security", "syncer.to.security").items():
            if key not in ("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn"):
                raise self._error(f"unknown key [syncer.to.security] {key}")
            if key == "cert-allowed-cn":
                if value:
                    self._warn(
                        "[syncer.to.security] cert-allowed-cn has no meaning for Sluice: the"
                        " certificate must be for the host"
                    )
            elif value:
                self._set("downstream", key, value)
        if kind == "mysql" and self._raw.get("data-dir"):
            self._warn(
                "data-dir has no meaning for Sluice: what is durable is in the relay log and in the"
                " downstream"
            )
        data_dir = str(self._raw.get("data-dir") or "data.drainer")
        if kind == "file":
            self._found.document.setdefault("file", {}).setdefault("dir", data_dir)
        if kind != "mysql":
            self._set(kind, "savepoint", str(Path(data_dir) / "savepoint"))

    def _checkpoint(self, kind: str, raw: Document) -> None:
        self._keys("syncer.to.checkpoint", raw, _CHECKPOINT_KEYS, {"type", "host", "port"})
        wanted = str(raw.get("type", ""))
        fits = wanted == "" or (
            wanted in ("mysql", "tidb") if kind == "mysql" else wanted == "file"
        )
        downstream = self._found.document.get("downstream", {})
        elsewhere = (
            kind == "mysql"
            and wanted
            and any(
                raw.get(key) not in (None, "", 0, downstream.get(key)) for key in ("host", "port")
            )
        )
        if not fits or elsewhere:
            raise self._error(
                "[syncer.to.checkpoint]: the checkpoint must be in the downstream itself, where it"
                " commits with the rows; copy the Drainer's row to"
                f" {downstream.get('host', 'the downstream')} and remove type, host and port"
            )

    def _filter(self, syncer: Document) -> None:
        rules = {
            name: dict(rule)
            for name, rule in self._table(
                syncer, "binlog-filter-rule", "syncer.binlog-filter-rule"
            ).items()
        }
        for name, rule in rules.items():
            unknown = [event for event in rule.get("ignore-event", ()) if not is_event(event)]
            if unknown:
                self._warn(
                    f"[syncer.binlog-filter-rule.{name}] ignore-event"
                    f" {', '.join(map(repr, unknown))}: left out, as it never matches in the"
                    " original"
                )
                rule["ignore-event"] = [
                    event for event in rule["ignore-event"] if event not in unknown
                ]
        migrate = []
        for number, rule in enumerate(syncer.get("table-migrate-rule", ()), 1):
            if rule.get("target"):
                self._warn(
                    f"[[syncer.table-migrate-rule]] {number} target: left out, as the original"
                    " heeds it for Oracle only; see [[route]]"
                )
            migrate.append({key: value for key, value in rule.items() if key != "target"})
        if syncer.get("sync-ddl") is False:
            self._set("filter", "sync-ddl", value=False)
        if rules:
            self._set("filter", "binlog-filter-rule", rules)
        if migrate:
            self._set("filter", "table-migrate-rule", migrate)
        for pattern in _patterns(syncer):
            if reads_otherwise(pattern):
                self._warn(
                    f"[syncer] {pattern!r}: * and ? are wildcards here; the original takes them for"
                    f" repetitions, as in ~^{pattern}$"
                )


def _patterns(syncer: Document) -> list[str]:
    found = [*str(syncer.get("ignore-schemas", "")).split(","), *syncer.get("replicate-do-db", ())]
    for key in ("replicate-do-table", "ignore-table"):
        for rule in syncer.get(key, ()):
            found += rule.values() if isinstance(rule, dict) else ()
    return [pattern.strip() for pattern in found if isinstance(pattern, str)]
