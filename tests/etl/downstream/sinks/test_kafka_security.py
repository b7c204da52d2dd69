"""A pipeline authenticates in every way that brokers know, with no more rights than documented."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import logging
import re
import secrets
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa

from sluice.etl.changes.messages import Message
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.downstream.sinks._kafka_errors import KafkaUnavailableError
from sluice.etl.downstream.sinks.kafka import KafkaSink
from sluice.etl.settings import Kafka
from tests.etl.downstream.sinks.kafka_topic import needs_broker, read_topics
from tests.kafka_broker import running_broker
from tests.ports import free_ports
from tests.pump_service.authority import Authority

pytestmark = needs_broker
USER, SECRET = "sluice", f"secret-{secrets.token_hex(8)}"
_SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},\
SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},BOTH://127.0.0.1:{both}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl},\
TLS://127.0.0.1:{tls},BOTH://127.0.0.1:{both}
controller.quorum.voters=1@127.0.0.1:{controller}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,\
SASL:SASL_PLAINTEXT,TLS:SSL,BOTH:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
{plain}
listener.name.sasl.oauthbearer.sasl.jaas.config=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required ;
listener.name.sasl.oauthbearer.sasl.server.callback.handler.class=\
org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.sasl.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={issuer}/keys
listener.name.sasl.oauthbearer.sasl.oauthbearer.expected.audience=kafka
listener.name.sasl.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required ;
listener.name.sasl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required ;
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.both.sasl.enabled.mechanisms=PLAIN
listener.name.tls.ssl.client.auth=required
listener.name.tls.ssl.principal.mapping.rules=RULE:^CN=(.*)$/$1/
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
_PLAIN = """\
listener.name.{listener}.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{secret}" ;
"""


@dataclass(frozen=True)
class Secured:
    """A broker with a listener for each protocol, and what its clients need."""

    plaintext: str
    sasl: str
    tls: str
    both: str
    issuer: str
    authority: Path
    certificate: Path
    key: Path

    def admin(self) -> AdminClient:
        """Return a client that may do everything."""
        return AdminClient({"bootstrap.servers": self.plaintext})


class _Issuer(http.server.BaseHTTPRequestHandler):
    """Give tokens for the client's secret, and the key that signs them."""

    key = rsa.generate_private_key(65537, 2048)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        given = self.headers.get("Authorization", "") + text
        is_known = SECRET in given or _basic() in given
        claims = {"sub": USER, "aud": "kafka", "iat": int(time.time()), "exp": time.time() + 300}
        token = jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "1"})
        self._answer({"access_token": token, "expires_in": 300} if is_known else {"error": "no"})

    def do_GET(self) -> None:
        found = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        self._answer({"keys": [found | {"kid": "1", "use": "sig", "alg": "RS256"}]})

    def _answer(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _basic() -> str:
    return base64.b64encode(f"{USER}:{SECRET}".encode()).decode()


@contextlib.contextmanager
def running_issuer() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Issuer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    authority: Any = Authority(folder)  # type: ignore[no-untyped-call]
    broker_pair = authority.issue("broker", "broker")
    certificate, key = authority.issue(USER, "client")
    keystore = folder / "keystore.pem"
    keystore.write_bytes(b"".join(path.read_bytes() for path in reversed(broker_pair)))
    port, controller, sasl, tls, both = free_ports(5)
    with running_issuer() as issuer:
        settings = _SETTINGS.format(
            port=port,
            controller=controller,
            sasl=sasl,
            tls=tls,
            both=both,
            issuer=issuer,
            keystore=keystore,
            authority=authority.path,
            plain="".join(
                _PLAIN.format(listener=name, user=USER, secret=SECRET) for name in ("sasl", "both")
            ),
        )
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer}/keys"
        with running_broker(settings, [allowed], port=port) as address:
            found = Secured(
                address,
                f"127.0.0.1:{sasl}",
                f"127.0.0.1:{tls}",
                f"127.0.0.1:{both}",
                issuer,
                authority.path,
                certificate,
                key,
            )
            admin = found.admin()  # which must outlive its answers
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                kind = ScramCredentialInfo(mechanism, 4096)
                new = UserScramCredentialUpsertion(USER, kind, SECRET.encode())
                admin.alter_user_scram_credentials([new])[USER].result()
            yield found


def options_of(secured: Secured, way: str, folder: Path) -> Kafka:
    """Return the settings of a pipeline that authenticates in a way."""
    prefix = f"t{secrets.token_hex(5)}"
    client: dict[str, Any] = {"ssl.ca.location": str(secured.authority)}
    environment: dict[str, Any] = {"sasl.password": "SLUICE_TEST_PASSWORD"}
    brokers = secured.sasl
    match way:
        case "TLS" | "TLS without a certificate":
            brokers, environment = secured.tls, {}
            client |= {"security.protocol": "SSL"}
            if way == "TLS":
                client |= {
                    "ssl.certificate.location": str(secured.certificate),
                    "ssl.key.location": str(secured.key),
                }
        case "OAUTHBEARER":
            environment = {"sasl.oauthbearer.client.secret": "SLUICE_TEST_PASSWORD"}
            client |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": way,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": USER,
                "sasl.oauthbearer.token.endpoint.url": f"{secured.issuer}/token",
            }
        case _:
            protocol = "SASL_SSL" if way == "PLAIN over TLS" else "SASL_PLAINTEXT"
            brokers = secured.both if way == "PLAIN over TLS" else secured.sasl
            client |= {
                "security.protocol": protocol,
                "sasl.mechanisms": way.partition(" ")[0],
                "sasl.username": USER,
            }
    return Kafka(
        brokers=brokers,
        topic=f"{prefix}.{{schema}}.{{table}}",
        savepoint=str(folder / "savepoint"),
        format="canal-json",
        dispatch="key",
        partitions=2,
        resume_topic=f"{prefix}-resume",
        transaction_topic=f"{prefix}-transactions",
        timeout_s=20,
        client=client,
        client_env=environment,
    )


def prefix_of(options: Kafka) -> str:
    return options.topic.partition(".")[0]


_REFUSALS = "SASL authentication|Authentication failed|certificate"
RIGHTS = (
    (ResourceType.TRANSACTIONAL_ID, "id", ("Write", "Describe")),
    (ResourceType.GROUP, "group", ("Describe",)),
    (ResourceType.TOPIC, "tables", ("Write", "Describe", "Create", "DescribeConfigs")),
    (ResourceType.TOPIC, "resume", ("Read", "Write", "Describe", "DescribeConfigs", "Create")),
)
_OPERATIONS = {
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Describe": AclOperation.DESCRIBE,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
}


def granted(secured: Secured, options: Kafka, without: Sequence[tuple[str, str]] = ()) -> None:
    """Give the pipeline's user the documented rights, but for some."""
    names = {
        "id": (f"sluice-7-{options.topic}", ResourcePatternType.LITERAL),
        "group": (f"sluice-7-{options.topic}", ResourcePatternType.LITERAL),
        "tables": (prefix_of(options), ResourcePatternType.PREFIXED),
        "resume": (options.resume_topic, ResourcePatternType.LITERAL),
    }
    bindings = [
        AclBinding(
            kind, *names[what], f"User:{USER}", "*", _OPERATIONS[each], AclPermissionType.ALLOW
        )
        for kind, what, operations in RIGHTS
        for each in operations
        if (what, each) not in without
    ]
    admin = secured.admin()
    for each in admin.create_acls(bindings).values():
        each.result()


def revoked(secured: Secured) -> None:
    anything: Any = None
    every = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    admin = secured.admin()
    for each in admin.delete_acls([every]).values():
        each.result()


def sent_one(options: Kafka) -> None:
    """Send a row, as a pipeline would, and go on where it was sent."""
    headers = (("commit_ts", b"5"), ("start_ts", b"4"), ("table", b"shop.orders"))
    for commit_ts in (5, 6):
        sink = KafkaSink(options, 7)
        try:
            checkpoint = sink.recover()
            assert (checkpoint.commit_ts if checkpoint else 5) == 5
            sink._send_row(1, Message(commit_ts, None, b"{}", headers), ())
            sink.run([Step(CommitDetail(4), commit_ts)])
        finally:
            sink.close()


@pytest.mark.parametrize(
    "way", ["PLAIN", "PLAIN over TLS", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "TLS"]
)
def test_a_pipeline_authenticates_and_logs_no_secret(
    way: str,
    secured: Secured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SLUICE_TEST_PASSWORD", SECRET)
    caplog.set_level(logging.DEBUG)
    options = options_of(secured, way, tmp_path)
    options.client["debug"] = "security"
    revoked(secured)
    granted(secured, options)
    sent_one(options)
    rows = read_topics(secured.plaintext, prefix_of(options) + ".")
    assert sum(map(len, rows.values())) == 2
    assert "sluice.kafka" in {record.name for record in caplog.records}
    assert SECRET not in caplog.text
    assert SECRET not in repr(options)
    assert secured.key.read_text().splitlines()[1] not in caplog.text


@pytest.mark.parametrize(
    "way", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "TLS without a certificate"]
)
def test_brokers_that_refuse_the_user_are_named_and_the_secret_is_not(
    way: str,
    secured: Secured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = f"wrong-{secrets.token_hex(8)}"
    monkeypatch.setenv("SLUICE_TEST_PASSWORD", wrong)
    options = replace(options_of(secured, way, tmp_path), timeout_s=6)
    sink = KafkaSink(options, 7)
    with pytest.raises((ApplyError, KafkaUnavailableError)) as caught:
        sink.recover()
    sink.close()
    shown = str(caught.value) + caplog.text
    reason = "broker connections are down|OAUTHBEARER" if way == "OAUTHBEARER" else _REFUSALS
    assert re.search(reason, shown, re.IGNORECASE), shown
    assert options.brokers in str(caught.value)
    assert wrong not in shown


def refusal(
    options: Kafka, secured: Secured, without: tuple[tuple[str, str], ...]
) -> tuple[str, str]:
    """Return the message and the hint of a pipeline that lacks rights; it must stop for good."""
    options = replace(options, timeout_s=6)
    revoked(secured)
    granted(secured, options, without)
    with pytest.raises(ApplyError) as caught:
        sent_one(options)
    return str(caught.value), caught.value.hint


@pytest.mark.parametrize(
    ("right", "of"),
    [
        (("id", "Write"), "transactional-id sluice-7-{topic}"),
        (("group", "Describe"), "group sluice-7-{topic}"),
        (("tables", "Create"), "topic {prefix}-transactions"),
        (("resume", "Read"), "topic {prefix}-resume"),
    ],
    ids=str,
)
def test_without_a_documented_right_the_pipeline_stops_by_name(
    right: tuple[str, str],
    of: str,
    secured: Secured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_TEST_PASSWORD", SECRET)
    options = options_of(secured, "PLAIN", tmp_path)
    shown, hint = refusal(options, secured, (right,))
    kind, _, name = of.replace("{prefix}", prefix_of(options)).partition(" ")
    name = name.replace("{topic}", options.topic)
    assert f"User:{USER} has no right to {right[1]} on {kind} {name!r}" in shown
    granted_by = ["--allow-principal", f"User:{USER}", "--operation", right[1], f"--{kind}", name]
    assert shlex.split(hint)[-6:] == granted_by


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("denied", ["rows", "resume"])
def test_topics_without_the_right_to_write_are_named_with_the_command_that_grants_it(
    denied: str,
    delivery: str,
    secured: Secured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_TEST_PASSWORD", SECRET)
    options = replace(options_of(secured, "PLAIN", tmp_path), delivery=delivery)
    prefix = prefix_of(options)
    # the documented prefix gives the right to the resume topic, too
    options = replace(options, resume_topic=f"other-{prefix}", transaction_topic="")
    without = "tables" if denied == "rows" else "resume"
    shown, hint = refusal(options, secured, ((without, "Write"),))
    name = f"{prefix}.shop.orders" if denied == "rows" else options.resume_topic
    assert f"User:{USER} has no right to Write on topic {name!r}" in shown
    assert hint == (
        f"kafka-acls.sh --bootstrap-server {options.brokers} --command-config ADMIN.properties"
        f" --add --allow-principal User:{USER} --operation Write --topic {name}"
    )
    assert not read_topics(secured.plaintext, options.resume_topic).get((options.resume_topic, 0))


def test_at_least_once_without_any_right_to_write_the_cluster_is_named(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_TEST_PASSWORD", SECRET)
    options = replace(
        options_of(secured, "PLAIN", tmp_path), delivery="at-least-once", transaction_topic=""
    )
    shown, hint = refusal(options, secured, (("tables", "Write"), ("resume", "Write")))
    assert f"User:{USER} has no right to IdempotentWrite on cluster" in shown
    assert hint.endswith("--operation IdempotentWrite --cluster")
