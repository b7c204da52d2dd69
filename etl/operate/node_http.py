"""Ask processes of the registry by HTTP: requests to a node, and captures of pumps."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sluice.tidb import TLS, tso

_CAPTURE_TIMEOUT_S = 2.0
"""A pump that serves answers within milliseconds; `sluice status` doesn't wait for others."""
_MAX_ASKED_AT_ONCE = 16


def ask_node(
    host: str, method: str, path: str, tls: TLS | None, timeout_s: float
) -> dict[str, Any] | None:
    """Send a request to a node and return its document; None if it has no such page.

    Raises OSError, ValueError.
    """
    status, body = _exchange(host, method, path, tls, timeout_s)
    if status == http.client.NOT_FOUND:
        return None
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError(f"the answer of {host}{path} is not a JSON object")
    return found


def read_text(host: str, path: str, tls: TLS | None, timeout_s: float) -> str:
    """Return the text of a node's page; "" if the node doesn't answer or has no such page."""
    try:
        status, body = _exchange(host, "GET", path, tls, timeout_s)
    except OSError:
        return ""
    return body.decode(errors="replace") if status == http.client.OK else ""


def captures(hosts: Sequence[str], tls: TLS | None) -> list[dict[str, Any] | None]:
    """Return what each pump's `GET /capture` has, in order.

    None for a pump that takes binlogs, or doesn't answer.
    """

    def ask(host: str) -> dict[str, Any] | None:
        try:
            return ask_node(host, "GET", "/capture", tls, _CAPTURE_TIMEOUT_S)
        except (OSError, ValueError):
            return None

    if not hosts:
        return []
    with ThreadPoolExecutor(min(len(hosts), _MAX_ASKED_AT_ONCE)) as pool:
        return list(pool.map(ask, hosts))


def _exchange(
    host: str, method: str, path: str, tls: TLS | None, timeout_s: float
) -> tuple[int, bytes]:
    """Return the status and the body of a node's answer. Raises OSError."""
    connection = (
        http.client.HTTPSConnection(host, timeout=timeout_s, context=tls.context())
        if tls
        else http.client.HTTPConnection(host, timeout=timeout_s)
    )
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{host}{path}: {error!r}") from None
    finally:
        connection.close()


def capture_lines(capture: dict[str, Any], now_ms: int) -> list[str]:
    """Return lines for people: lag, regions by state, what holds the frontier back or ended it."""
    frontier = capture["frontier_ts"]
    lag_s = max(0, now_ms - tso.physical_ms(frontier)) / 1000
    known = f"{lag_s:,.1f} s behind the clock" if frontier else "not begun"
    states = ", ".join(
        f"{count:,} {state}" for state, count in sorted(capture["regions"].items()) if count
    )
    share = f" share {capture['share']} of the tables" if capture.get("share") else ""
    lines = [f"captures{share} from TiKV, {known}; regions: {states or 'none yet'}"]
    if capture["failure"]:
        lines.append(f"FAILED: {capture['failure']}")
    elif capture["held_back_by"]:
        lines.append(f"held back by {capture['held_back_by']}")
    lines += [f"DIFFERS: {each}" for each in capture.get("replicas", {}).values() if each]
    return lines
