"""The programs that the one-machine stack needs beside Python's packages.

Which are missing, and how to get them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from sluice.devstack.launch.service import MissingProgram, find_program
from sluice.devstack.launch.spark import java_home


@dataclass(frozen=True, slots=True)
class Program:
    """A program, the Debian package that has it, and what it is for."""

    name: str
    package: str
    purpose: str


REQUIRED = (
    Program("etcd", "etcd-server", "the registry of pumps"),
    Program("mariadbd", "mariadb-server-core", "the downstream"),
    Program("mariadb-install-db", "mariadb-server-core", "the downstream's data folder"),
    Program("my_print_defaults", "mariadb-client-core", "called by mariadb-install-db"),
    Program("java", "default-jre-headless", "Spark: Java 17 or later"),
)
"""Without these there is no one-machine stack."""

OPTIONAL = (
    Program(
        "prometheus",
        "prometheus",
        "not needed: to collect the metrics, and for the tests of the alerts",
    ),
    Program("chromium", "chromium", "not needed: for the tests of the pages"),
)


def find_path(program: Program) -> str:
    """Return a program's path. Raises MissingProgram."""
    if program.name == "java":
        return str(java_home() / "bin" / "java")
    return find_program(program.name, program.package)


def missing() -> list[Program]:
    """Return those of `REQUIRED` that aren't installed."""
    found = []
    for program in REQUIRED:
        try:
            find_path(program)
        except MissingProgram:
            found.append(program)
    return found


def require() -> None:
    """Raise MissingProgram, with all that are missing and the commands that install them."""
    if lacking := missing():
        raise MissingProgram(install_hint(lacking))


def install_hint(programs: list[Program]) -> str:
    """Return what is missing, and the commands that install it, for root and for other users."""
    packages = " ".join(sorted({program.package for program in programs}))
    lines = [
        "not installed on this machine:"
        f" {', '.join(f'{each.name} ({each.purpose})' for each in programs)}"
    ]
    if shutil.which("apt-get"):
        sudo = "" if os.geteuid() == 0 else "sudo "
        lines += [
            f"  as root:      {sudo}apt-get install --no-install-recommends {packages}",
            "  without root: sluice programs --get",
        ]
    else:
        lines.append(
            f"  there is no apt-get here; install what Debian has as {packages}, and have it on"
            " PATH"
        )
    return "\n".join(lines)
