"""Read docker-compose.yaml as Docker does: variables, merges, the services of profiles."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yaml"
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-+])([^}]*))?\}")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def defaults() -> dict[str, str]:
    """The variables of `.env`."""
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def document(variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with these variables. Not to be changed: it is read once."""
    return _document(tuple(sorted(variables.items())))


@functools.cache
def _document(variables: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load(filled(FILE.read_text(), dict(variables)), yaml.CSafeLoader)
    return found


def filled(text: str, variables: Mapping[str, str]) -> str:
    """`${NAME}`, `${NAME:-otherwise}` and `${NAME:+instead}`, which is all that the file uses."""

    def value(found: re.Match[str]) -> str:
        name, how, other = found.groups()
        given = variables.get(name, "")
        if how == "+":
            return other if given else ""
        return given or other or ""

    return _VARIABLE.sub(value, text)


def services(variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services of the profiles that COMPOSE_PROFILES names, and those without a profile."""
    wanted = set(variables.get("COMPOSE_PROFILES", "").split(","))
    found = document(variables)["services"]
    return {
        name: one
        for name, one in found.items()
        if not one.get("profiles") or wanted & set(one["profiles"])
    }


def seconds(text: str) -> float:
    """A duration such as `2m` or `1m30s`."""
    parts = re.findall(r"(\d+)(ms|s|m|h)", text)
    assert "".join(a + b for a, b in parts) == text, text
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)
