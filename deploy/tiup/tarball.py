"""Pack a pump as a TiUP package: a tarball that needs only a Python.

TiUP puts it in the place of the original's.

TiUP unpacks a component's package into ``<deploy dir>/bin``, and starts ``bin/pump`` with flags
that it knows of the original (pkg/cluster/task/install_package.go and
embed/templates/scripts/run_pump.sh.tpl in pingcap/tiup). So at the top of the tarball there are::

    pump                      starts the pump
    sluice-pump/              the pump and the packages it needs, as they are installed here
    sluice-pump/python-version
    pump.toml.example
    run_pump.sh               the same for users without TiUP

The packages have compiled parts: the tarball is for this Python's version and this kind of
machine.
"""

from __future__ import annotations

import gzip
import platform
import re
import shutil
import sys
import tarfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
PACKAGES = REPOSITORY / "deploy" / "pump-packages.txt"
OWN = ("__init__.py", "errors.py", "pump_service", "tidb")
"""Parts of the package `sluice` that a pump is made of."""
_AT_THE_TOP = ("pump", "run_pump.sh", "pump.toml.example")
_NOT_NEEDED = re.compile(
    r"(^|/)(__pycache__|tests?|include|src|\.\.)(/|$)|\.(pyx|pxd|pxi|h|hpp|c|cc|cpp|pyi)$|^bin/"
)
_MAIN = """\
import sys

from sluice.pump_service import main

if __name__ == "__main__":  # processes of shares import this file
    sys.exit(main())
"""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def name_of_tarball() -> str:
    """Name the tarball as TiUP names packages, with this Python's version.

    ``pump-0.1.0-linux-amd64-py3.11.tar.gz``
    """
    machine = _MACHINES.get(platform.machine(), platform.machine())
    return f"pump-{metadata.version('sluice')}-linux-{machine}-py{_python()}.tar.gz"


def bundle(target: Path) -> None:
    """Make the folder that is packed; one that is there is replaced.

    Raises metadata.PackageNotFoundError.
    """
    shutil.rmtree(target, ignore_errors=True)
    packages = target / "sluice-pump"
    packages.mkdir(parents=True)
    for name in _AT_THE_TOP:
        shutil.copy(HERE / name, target / name)
    for name in _closure():
        _copy_distribution(name, packages)
    own = packages / "sluice"
    own.mkdir()
    for name in OWN:
        source = REPOSITORY / "sluice" / name
        if source.is_file():
            shutil.copy(source, own / name)
        else:
            shutil.copytree(
                source, own / name, ignore=shutil.ignore_patterns("__pycache__", "*.proto")
            )
    _copy_distribution("sluice", packages)
    (packages / "__main__.py").write_text(_MAIN, encoding="utf-8")
    (packages / "python-version").write_text(f"{_python()}\n", encoding="utf-8")


def pack(folder: Path, target: Path, *, level: int = 6) -> None:
    """Pack the folder's contents, the same bytes for the same files. `level` is gzip's."""
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", level, file, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def _python() -> str:
    return "{}.{}".format(*sys.version_info[:2])


def _closure() -> list[str]:
    """Return the distributions that a pump needs, with what they need themselves."""
    text = PACKAGES.read_text(encoding="utf-8")
    waiting = [
        line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")
    ]
    found: set[str] = set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        waiting += [
            match[0]
            for each in metadata.requires(name) or ()
            if "extra ==" not in each and (match := re.match(r"[\w.-]+", each))
        ]
    return sorted(found)


def _copy_distribution(name: str, target: Path) -> None:
    """Return the files of an installed distribution, but for those that nothing imports."""
    for file in metadata.files(name) or ():
        if _NOT_NEEDED.search(str(file)) or file.suffix == ".pth":
            continue
        there = target / file
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.locate(), there)
