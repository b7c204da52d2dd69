"""The services of docker-compose.yaml as processes of this machine, each at a loopback address of
its own.

Commands, environments, configs, secrets, checks of health, the order of starting and the grace of
stopping are those of the file. Translated are the names of services (to addresses; ports stay), and
paths in containers (to folders here). For images of others the same program is started from
Debian's package, prepared as the image's documentation says (`tests.deploy.images`).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.start import healthy
from tests.deploy import compose_file, docker_file
from tests.deploy.compose_file import ROOT

DEADLINE_S = 280.0
"""For each service to be healthy or done; much more than it takes, and less than a test may."""


def _addresses(count: int) -> list[str]:
    """Loopback addresses that nobody else here is likely to use."""
    net = f"127.{random.SystemRandom().randint(16, 250)}.{random.SystemRandom().randint(1, 250)}"
    return [f"{net}.{number}" for number in range(2, 2 + count)]


@dataclass
class Service:
    """One service; `root` is the folder that stands for its container's file system."""

    name: str
    said: Mapping[str, Any]
    address: str
    root: Path
    argv: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    took_s: dict[str, float] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def image(self) -> str:
        """Without its tag."""
        return str(self.said["image"]).split("@")[0].rpartition(":")[0].rpartition("/")[2]

    @property
    def ends(self) -> bool:
        """Whether it does one thing and ends."""
        return "healthcheck" not in self.said

    def tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"--- {self.name}: {' '.join(self.argv)}\n{text[-3000:]}"


class Machine:
    """`home`: an empty folder.

    `variables`: what is in .env. `without`: services that have no program here. `dags`: the files
    that Airflow gets.
    """

    def __init__(
        self,
        home: Path,
        variables: Mapping[str, str],
        *,
        without: frozenset[str],
        dags: tuple[str, ...],
    ) -> None:
        self.home = home
        home.chmod(0o755)  # servers that don't run as root have their folders in it
        given = compose_file.defaults() | dict(variables)
        self._document = compose_file.document(given)
        found = {
            name: one for name, one in compose_file.services(given).items() if name not in without
        }
        self.services = {
            name: Service(name, one, address, home / name)
            for (name, one), address in zip(found.items(), _addresses(len(found)))
        }
        self.failed = threading.Event()
        self._dags = home / "dags"
        self._dags.mkdir()
        for name in dags:
            shutil.copy(ROOT / "dags" / name, self._dags)
        self._secrets = home / "secrets"
        names = {"SPARK_CONNECT_NAMES": f"IP:{self.services['spark-connect'].address}"}
        made = [ROOT / "deploy" / "make-secrets", self._secrets]
        subprocess.run(made, env=os.environ | names, check=True, capture_output=True)
        for service in self.services.values():
            self._furnish(service)

    # ---- translation ---------------------------------------------------------------------------

    def translated(self, service: Service, text: str) -> str:
        """`text` as it is meant in that service's container, for here.

        Each place is translated once.
        """
        paths = self._paths(service)
        own = {"0.0.0.0", "127.0.0.1", "localhost"}
        named = {name: other.address for name, other in self.services.items()}
        hosts = {
            other.said["hostname"] for other in self.services.values() if other.said.get("hostname")
        }
        each, alone, folders = (_any_of(names) for names in (named, hosts, paths))
        pattern = re.compile(
            rf"(?P<path>(?<![\w./-]){folders}(?![\w.-]))"
            rf"|(?P<own>(?<![\w.]){_any_of(own)}(?![\w.]))"
            rf'|(?P<name>(?<![\w.-]){each}(?=:\d)|(?<="){each}(?=")|\A{alone}\Z)'
        )

        def here(found: re.Match[str]) -> str:
            if found["path"]:
                return paths[found["path"]]
            return service.address if found["own"] else named[found["name"]]

        return pattern.sub(here, text)

    def _paths(self, service: Service) -> dict[str, str]:
        """Paths in the container, and where they are here."""
        found = {
            "/opt/sluice/dags": str(self._dags),
            "/opt/sluice": str(ROOT),
            "/opt/venv": sys.prefix,
            "/tmp": str(service.root / "tmp"),
        }
        for volume in service.said.get("volumes", []):
            source, target = volume.split(":")[:2]
            found[target] = str(
                (ROOT / source).resolve()
                if source.startswith(".")
                else self.home / "volumes" / source
            )
        for one in service.said.get("configs", []):
            found[one["target"]] = str(service.root / one["target"].lstrip("/"))
            if one["target"].startswith("/etc/"):  # a folder that is named as a whole
                found.setdefault(
                    str(Path(one["target"]).parent),
                    str((service.root / one["target"].lstrip("/")).parent),
                )
        for name in service.said.get("secrets", []):
            found[f"/run/secrets/{name}"] = str(service.root / "run" / "secrets" / name)
        return found

    def _furnish(self, service: Service) -> None:
        """Folders, configs and secrets of a service, its command and its environment."""
        from tests.deploy import images

        (service.root / "tmp").mkdir(parents=True)
        for volume in service.said.get("volumes", []):
            if not volume.startswith("."):
                (self.home / "volumes" / volume.split(":")[0]).mkdir(parents=True, exist_ok=True)
        for one in service.said.get("configs", []):
            target = service.root / one["target"].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            text = (ROOT / self._document["configs"][one["source"]]["file"]).read_text()
            target.write_text(self.translated(service, text))
        for name in service.said.get("secrets", []):
            target = service.root / "run" / "secrets" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.translated(service, (self._secrets / name).read_text()))
        given = {
            key: self.translated(service, str(value))
            for key, value in service.said.get("environment", {}).items()
        }
        command = [self.translated(service, str(word)) for word in service.said.get("command", [])]
        service.environment = (
            _ENVIRONMENT | {"HOME": str(service.root), "TMPDIR": str(service.root / "tmp")} | given
        )
        if "build" in service.said:
            image = docker_file.stages()[service.said["build"]["target"]]
            of_image = {
                key: self.translated(service, value) for key, value in image.environment.items()
            }
            service.environment = of_image | service.environment
            service.argv = [*service.said.get("entrypoint", image.command("ENTRYPOINT")), *command]
        else:
            service.argv = images.IMAGES[service.image](service, command, self._paths(service))

    # ---- running -------------------------------------------------------------------------------

    def up(self) -> None:
        """Start all in the order of the file, and wait until each is healthy, or done.

        Raises AssertionError.
        """
        with ThreadPoolExecutor(len(self.services)) as pool:
            futures = [pool.submit(self._bring_up, service) for service in self.services.values()]
            for future in futures:
                future.result()

    def _bring_up(self, service: Service) -> None:
        try:
            for needed in service.said.get("depends_on", {}):
                while needed in self.services and not self.services[needed].ready.wait(0.05):
                    if self.failed.is_set():
                        return
            began = time.monotonic()
            self._start(service)
            self._wait(service)
            service.took_s["start"] = time.monotonic() - began
            service.ready.set()
        except BaseException:
            self.failed.set()
            raise

    def _start(self, service: Service) -> None:
        from tests.deploy import images

        with service.log.open("ab") as log:
            service.process = subprocess.Popen(
                service.argv,
                env=service.environment,
                cwd=ROOT if "build" in service.said else service.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **images.user_of(service.image),
            )

    def _wait(self, service: Service) -> None:
        until = time.monotonic() + DEADLINE_S
        assert service.process
        pause = (
            compose_file.seconds(service.said.get("healthcheck", {}).get("start_interval", "1s"))
            / 2
        )
        while True:
            code = service.process.poll()
            if service.ends and code is not None:
                assert code == 0, service.tail()
                return
            assert code is None, service.tail()
            if not service.ends and (said := self.unhealthy(service)) == "":
                return
            assert time.monotonic() < until, service.tail() + (
                "" if service.ends else f"\nhealth: {said}"
            )
            if self.failed.wait(pause):
                return

    def unhealthy(self, service: Service) -> str:
        """What the service's check of health says against it; "" for nothing."""
        from tests.deploy import images

        words = [self.translated(service, word) for word in service.said["healthcheck"]["test"]]
        assert words[0] == "CMD"
        if words[1:4] == ["python", "-m", "deploy.start.healthy"]:
            # here first: a Python for each look would take from the services the CPU that they
            # start with
            try:
                healthy.KINDS[words[4]](*words[5:])
            except Exception as error:
                return repr(error)
        command = images.CHECKS.get(words[1], lambda _, argv: argv)(service, words[1:])
        try:
            done = subprocess.run(
                command, env=service.environment, cwd=ROOT, capture_output=True, text=True,
                timeout=4 * compose_file.seconds(service.said["healthcheck"]["timeout"]),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return str(error)
        return (
            ""
            if done.returncode == 0
            else done.stdout + done.stderr + f"exit code {done.returncode}"
        )

    def stop(self, service: Service) -> int:
        """End it as Docker does: the signal to its first process, then the rest goes.

        Its exit code.
        """
        assert service.process
        began = time.monotonic()
        service.process.send_signal(signal.Signals[service.said.get("stop_signal", "SIGTERM")])
        try:
            code = service.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{service.name} goes on after its signal\n{service.tail()}"
            ) from None
        service.took_s["stop"] = time.monotonic() - began
        self._sweep(service)
        return code

    def down(self) -> dict[str, int]:
        """End all, those that need others first. Exit codes of those that ran."""
        codes: dict[str, int] = {}
        left = set(self.services)
        while left:
            needed = {
                other for name in left for other in self.services[name].said.get("depends_on", {})
            }
            leaving = left - needed
            now = [name for name in sorted(leaving) if self._runs(name)]
            with ThreadPoolExecutor(len(leaving)) as pool:
                codes.update(zip(now, pool.map(lambda name: self.stop(self.services[name]), now)))
            left -= leaving
        return codes

    def _runs(self, name: str) -> bool:
        process = self.services[name].process
        return process is not None and process.poll() is None

    def kill(self) -> None:
        """Whatever is left is gone."""
        self.failed.set()
        for service in self.services.values():
            self._sweep(service)

    def _sweep(self, service: Service) -> None:
        if service.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.process.pid, signal.SIGKILL)
            service.process.wait()


_ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": str(ROOT),
    "LANG": "C.UTF-8",
    "NO_PROXY": "*",
    "no_proxy": "*",
    "SPT_NOENV": "1",
} | {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}


def _any_of(texts: Iterable[str]) -> str:
    """A pattern; the longest comes first."""
    return f"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})"
