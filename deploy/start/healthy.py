"""Check whether a service serves: exit code 0 if it does, else 1 and a line with the reason.

    python -m deploy.start.healthy KIND ADDRESS …

    http URL                answers with 200; at https whose certificate it is isn't looked at, and
                            the pump's own (PUMP_SSL_CERT, PUMP_SSL_KEY) is shown
    pump URL [NODE]         the registry shows the pump online: it takes binlogs. NODE is by
                            default the pump's own
    airflow URL COMPONENT   the api-server at URL knows of a heartbeat (metadatabase: that
                            alone): scheduler, dag_processor, triggerer
    spark-worker URL        the worker is registered with a master
    grpc HOST:PORT          speaks HTTP/2, as Spark Connect does
    grpcs HOST:PORT         the same over TLS; whose certificate it is isn't looked at

Without a host, as in ``http://:8080/json/`` and ``:15002``, this machine's own name is taken. Only
the standard library is imported: this runs every few seconds in every container.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

_TIMEOUT_S = 8.0
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_SETTINGS = 4
"""The type of the first frame that every HTTP/2 server sends (RFC 9113, 3.4)."""


def http(url: str) -> bytes:
    """Return what is answered. Raises OSError, also for a status that isn't 2xx."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_own_tls())
    )
    with opener.open(_with_host(url), timeout=_TIMEOUT_S) as answer:
        body: bytes = answer.read()
    return body


def pump(url: str, node: str = "") -> None:
    """Raise OSError unless the pump at `url` is online."""
    states = {
        name: entry.get("State", entry.get("state"))
        for name, entry in _json(f"{url}/status")["status"].items()
    }
    state = states.get(node or socket.gethostname())
    if state != "online":
        raise OSError(f"pump {node or socket.gethostname()} is {state}, the registry has {states}")


def airflow(url: str, component: str) -> None:
    """Raise OSError unless the component's last heartbeat is young."""
    health = _json(f"{url}/api/v2/monitor/health")[component]
    if health["status"] != "healthy":
        raise OSError(f"{component}: {health}")


def spark_worker(url: str) -> None:
    """Raise OSError unless a master knows the worker."""
    worker = _json(f"{url}/json/")
    if not worker.get("masterurl"):
        raise OSError(f"no master knows worker {worker.get('id')}")


def grpc(address: str) -> None:
    """Raise OSError if something else than HTTP/2 answers."""
    host, _, port = _with_host(address).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        _speak_http2(connection, address)


def grpcs(address: str) -> None:
    """Raise OSError if something else than HTTP/2 answers over TLS, or nothing speaks TLS."""
    host, _, port = _with_host(address).rpartition(":")
    context = _own_tls()
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection,
        context.wrap_socket(connection) as spoken,
    ):
        _speak_http2(spoken, address)


def _speak_http2(connection: socket.socket, address: str) -> None:
    connection.sendall(_HTTP2_PREFACE)
    head = b""
    while len(head) < 9 and (more := connection.recv(9 - len(head))):
        head += more
    if len(head) < 9 or head[3] != _SETTINGS:
        raise OSError(f"{address} doesn't speak HTTP/2")


def _own_tls() -> ssl.SSLContext:
    """Return the TLS settings for a server of this container."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate := os.environ.get("PUMP_SSL_CERT"):
        context.load_cert_chain(certificate, os.environ.get("PUMP_SSL_KEY"))
    return context


KINDS: dict[str, Callable[..., object]] = {
    "http": http,
    "pump": pump,
    "airflow": airflow,
    "spark-worker": spark_worker,
    "grpc": grpc,
    "grpcs": grpcs,
}


def _with_host(address: str) -> str:
    scheme, slashes, rest = address.rpartition("://")
    return f"{scheme}{slashes}{socket.gethostname() if rest.startswith(':') else ''}{rest}"


def _json(url: str) -> Any:
    return json.loads(http(url))


def main(arguments: list[str]) -> int:
    """Run the check; return the exit code."""
    if len(arguments) < 2 or arguments[0] not in KINDS:
        print(f"usage: python -m deploy.start.healthy {'|'.join(KINDS)} ADDRESS …", file=sys.stderr)
        return 2
    try:
        KINDS[arguments[0]](*arguments[1:])
    except (OSError, ValueError, KeyError) as error:
        print(f"{' '.join(arguments)}: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
