"""The versions of other packages: those installed, and those this release was tested with."""

from __future__ import annotations

from importlib import metadata

from sluice.devstack.repository import CONSTRAINTS


def untested() -> dict[str, tuple[str, str]]:
    """Name → (installed version, tested one) where they differ.

    Empty in a clone, which has those of uv.lock.
    """
    if not CONSTRAINTS.exists():
        return {}
    lines = (
        line.partition(" ;")[0] for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    )
    tested: dict[str, set[str]] = {}
    for line in lines:
        name, equals, version = line.strip().partition("==")
        if equals:
            tested.setdefault(name, set()).add(version)
    found = {}
    for name, versions in tested.items():
        try:
            there = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if there not in versions:
            found[name] = (there, " or ".join(sorted(versions)))
    return found
