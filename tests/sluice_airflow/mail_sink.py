"""A mail server that keeps what it is given, as Airflow's notifiers send it."""

from __future__ import annotations

import contextlib
import email
import email.policy
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from email.message import EmailMessage

import pytest

CONNECTION = "AIRFLOW_CONN_SMTP_DEFAULT"


class MailSink:
    """The mails so far; the next `refusals` are refused."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refusals = 0

    def new(self) -> list[str]:
        """The subjects of the mails since the last call."""
        found, self.mails = self.mails, []
        return [str(mail["Subject"]) for mail in found]

    @property
    def last_text(self) -> str:
        body = self.mails[-1].get_body(("html", "plain"))
        assert body is not None
        return str(body.get_content())


@contextlib.contextmanager
def mail_sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailSink]:
    """Have Airflow's connection `smtp_default` lead to a new sink."""
    sink = MailSink()

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                verb = line.split()[0].upper()
                if verb == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    data = b"".join(each.removeprefix(b".") for each in lines)
                    parsed = email.message_from_bytes(data, policy=email.policy.default)
                    assert isinstance(parsed, EmailMessage)
                    sink.mails.append(parsed)
                if verb == b"MAIL" and sink.refusals:
                    sink.refusals -= 1
                    self.wfile.write(b"550 not now\r\n")
                else:
                    self.wfile.write(b"250 ok\r\n" if verb != b"QUIT" else b"221 bye\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        extra = {"disable_tls": True, "disable_ssl": True, "retry_limit": 0, "timeout": 60}
        monkeypatch.setitem(
            os.environ,
            CONNECTION,
            json.dumps(
                {
                    "conn_type": "smtp",
                    "host": "127.0.0.1",
                    "port": server.server_address[1],
                    "extra": extra | {"from_email": "sluice@example.com"},
                }
            ),
        )
        yield sink
        server.shutdown()
