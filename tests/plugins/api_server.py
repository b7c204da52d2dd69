"""An Airflow api-server with the pages as a child process, and requests to it as its people."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

from tests.plugins.pages_server import PEOPLE, PREFIX, environment
from tests.ports import free_port


class Server:
    """Where it is, and requests to it as one of its people, or as nobody."""

    def __init__(self, port, pipeline):
        self.origin = f"http://127.0.0.1:{port}"
        self.snapshot = f"{self.origin}{PREFIX}"
        self.pipeline = pipeline
        self.tokens = {}

    def log_in(self):
        for name in PEOPLE:
            body = json.dumps({"username": name, "password": name}).encode()
            _, answer, _ = self.call(
                "POST", "/auth/token", body, {"Content-Type": "application/json"}
            )
            self.tokens[name] = json.loads(answer)["access_token"]

    def call(self, method, path, body=None, headers=None):
        """(status, body, headers) of what is below Airflow's address; redirects aren't followed."""
        request = urllib.request.Request(
            f"{self.snapshot}{path}", body, headers or {}, method=method
        )
        opener = urllib.request.build_opener(_Stay)
        try:
            with opener.open(request, timeout=120) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers

    def get(self, path, who="vic"):
        """The JSON that somebody gets."""
        status = 202
        while status == 202:  # it is being worked out
            status, body, _ = self.call("GET", f"/sluice/api/{path}", None, self.cookie(who))
        assert status == 200, (path, status, body)
        return json.loads(body)

    def order(self, path, who, body=b"{}", **headers):
        """(status, JSON) of an order as the pages send it.

        `headers` change it, None takes one out.
        """
        usual = {
            "Content-Type": "application/json",
            "X-Sluice": "1",
            "Origin": self.origin,
            "Sec-Fetch-Site": "same-origin",
        }
        changed = usual | {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in changed.items() if value is not None}
        status, answer, _ = self.call("POST", f"/sluice/api/{path}", body, sent | self.cookie(who))
        return status, json.loads(answer)

    def cookie(self, who):
        return {"Cookie": f"_token={self.tokens[who]}"} if who else {}


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args):
        return None


@contextlib.contextmanager
def api_server(folder, config, pipeline=None):
    """Run one for the pipeline of that settings' file; `folder` is for its own files."""
    port = free_port()
    env = environment(folder / "airflow", port) | {"SLUICE_CONFIG": str(config)}
    command = [
        sys.executable,
        "-m",
        "tests.plugins.pages_server",
        str(folder / "airflow"),
        str(port),
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        server = Server(port, pipeline)
        _wait(server, process, folder / "log")
        server.log_in()
        yield server
    finally:
        process.terminate()
        process.wait(60)


def _wait(server, process, log):
    deadline = time.monotonic() + 900
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            status, _, _ = server.call("GET", "/api/v2/monitor/health")
        except OSError:
            time.sleep(0.1)
            continue
        assert status == 200
        return
