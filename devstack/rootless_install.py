"""Install Debian's packages for a user without root.

They are loaded with apt into a folder of one's own, unpacked there, and started by small scripts
that give the programs the places of their files. Nothing outside of the folder changes.

Layout of the folder::

    apt/            apt's lists and what it has loaded; removed in the end
    root/           what was in the packages, as it would be in /
    bin/<program>   the scripts
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.devstack.launch.programs import Program
from sluice.devstack.launch.service import MissingProgram

_SHARED = (
    '--lc-messages-dir="$ROOT/usr/share/mysql"'
    ' --character-sets-dir="$ROOT/usr/share/mysql/charsets"'
)
_ARGUMENTS = {
    "mariadbd": f'--basedir="$ROOT/usr" {_SHARED}',
    "mariadb-install-db": '--basedir="$ROOT/usr"',
}
"""Options by which a program finds what is not where it was built for."""
_SCRIPT = """\
#!/bin/sh
# Made by `sluice programs --get`: {package} of Debian, unpacked in {root}
ROOT='{root}'
LD_LIBRARY_PATH="{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
PATH="$ROOT/usr/bin:$ROOT/usr/sbin:$PATH"
export LD_LIBRARY_PATH PATH
exec "{program}" "$@" {arguments}
"""


def get(programs: Sequence[Program], folder: Path, report: Callable[[str], None]) -> None:
    """Install `programs` into ``folder/bin``.

    Raises MissingProgram if apt isn't there or can't load the packages.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise MissingProgram(
            "there is no apt-get and dpkg-deb here: without root this works on Debian and its likes"
        )
    packages = sorted({program.package for program in programs})
    apt, root = folder / "apt", folder / "root"
    loaded = _load(packages, apt, report)
    root.mkdir(parents=True, exist_ok=True)
    for package in loaded:
        _run(["dpkg-deb", "--extract", str(package), str(root)])
    shutil.rmtree(apt)
    _turn_links_inwards(root)
    (folder / "bin").mkdir(exist_ok=True)
    for program in programs:
        _write_script(program, root, folder / "bin" / program.name)
        report(f"{program.name:<20} {folder / 'bin' / program.name}")


def _load(packages: Sequence[str], apt: Path, report: Callable[[str], None]) -> list[Path]:
    """Return the .deb files of `packages` and of what they need that this machine lacks."""
    for each in ("state/lists/partial", "cache/archives/partial"):
        (apt / each).mkdir(parents=True, exist_ok=True)
    command = [
        "apt-get",
        "-q",
        "-o",
        f"Dir::State={apt / 'state'}",
        "-o",
        f"Dir::Cache={apt / 'cache'}",
        "-o",
        "Dir::State::status=/var/lib/dpkg/status",
        "-o",
        "Debug::NoLocking=1",
        "-o",
        "APT::Sandbox::User=",
    ]
    report(f"loading Debian's {', '.join(packages)} and what they need")
    _run([*command, "update"])
    _run([*command, "install", "--yes", "--download-only", "--no-install-recommends", *packages])
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def _run(command: Sequence[str]) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1800)
    if done.returncode:
        raise MissingProgram(
            f"`{' '.join(command)}` failed: {(done.stdout + done.stderr).strip()[-1500:]}"
        )


def _turn_links_inwards(root: Path) -> None:
    """Turn links to files of the packages, which name them from /, into links inside of `root`."""
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            if path.is_symlink() and (target := str(path.readlink())).startswith("/"):
                inside = root / target[1:]
                if not target.startswith(str(root)) and os.path.lexists(inside):
                    path.unlink()
                    path.symlink_to(inside)


def _write_script(program: Program, root: Path, script: Path) -> None:
    found = [root / where / program.name for where in ("usr/bin", "usr/sbin")]
    found += sorted(root.glob(f"usr/lib/jvm/*/bin/{program.name}"))
    there = next((path for path in found if path.exists()), None)
    if there is None:
        raise MissingProgram(f"Debian's package {program.package} has no {program.name}")
    libraries = sorted(
        {
            str(path.parent)
            for place in ("lib", "usr/lib")
            for path in root.glob(f"{place}/**/*.so*")
        }
    )
    script.write_text(
        _SCRIPT.format(
            package=program.package, root=root, libraries=":".join(libraries), program=there,
            arguments=_ARGUMENTS.get(program.name, ""),
        ),
        encoding="utf-8",
    )  # fmt: skip
    script.chmod(0o755)
