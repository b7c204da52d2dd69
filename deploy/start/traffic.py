"""``python -m deploy.start.traffic CONTROL``: has the stand-in cluster send transactions.

CONTROL is the address of its control port, such as ``http://standin:2380``. TRAFFIC_RATE is how
many transactions a second, until the stand-in is stopped. If the stand-in plays a recording
(STANDIN_RECORDING), that is sent instead, through the label TRAFFIC_UNTIL or to its end, at
TRAFFIC_SPEED times the speed at which it was recorded, or at "max".
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping

_TIMEOUT_S = 60.0


def order(environment: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    """Return the path on the control port, and what to POST there.

    Raises ValueError for a rate that is no number.
    """
    if environment.get("STANDIN_RECORDING"):
        wanted: dict[str, object] = {"until": environment.get("TRAFFIC_UNTIL") or None}
        wanted["speed"] = environment.get("TRAFFIC_SPEED") or "1"
        return "/replay", wanted
    rate = float(environment.get("TRAFFIC_RATE") or 20)
    return "/workload", {"rate": rate, "transactions": None, "rows": 3, "tables": 4}


def main() -> None:
    """Begin the traffic; end with a line that names what has begun, or what was refused."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m deploy.start.traffic CONTROL")
    try:
        path, body = order(os.environ)
        request = urllib.request.Request(  # noqa: S310 the URL is the compose file's
            sys.argv[1] + path, json.dumps(body).encode(), method="POST"
        )
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=_TIMEOUT_S
        ).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"traffic: {error.read(2_000).decode('utf-8', 'replace')}")
    except (OSError, ValueError) as error:
        sys.exit(f"traffic: {error}")
    print(f"traffic has begun: {path} {json.dumps(body)}")


if __name__ == "__main__":
    main()
