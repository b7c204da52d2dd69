"""Dockerfile, as far as tests need it: stages with what each says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("pump", "airflow", "spark", "standin")
"""Those that somebody builds; the others are on the way to them."""


@dataclass
class Stage:
    """`said`: instruction and rest of the line, in order, those of the stages it is made from
    first.
    """

    name: str
    base: str
    said: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        """What the last such instruction says; "" if there is none."""
        return next((rest for name, rest in reversed(self.said) if name == instruction), "")

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.said if name == instruction]

    def command(self, instruction: str) -> list[str]:
        """An instruction's command in JSON."""
        text = self.last(instruction)
        return json.loads(text[text.index("[") :]) if text else []

    @property
    def environment(self) -> dict[str, str]:
        """What ENV says, without PATH."""
        found = dict(word.split("=", 1) for rest in self.all("ENV") for word in rest.split())
        return {name: value for name, value in found.items() if name != "PATH"}


def stages() -> dict[str, Stage]:
    """By name. The base of one that is made from no other stage is its image."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    now = None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        instruction, rest = line.split(None, 1)
        if instruction == "ARG" and now is None:
            name, value = rest.split("=", 1)
            arguments[name] = value
        elif instruction == "FROM":
            base, _, name = rest.split()
            base = re.sub(r"\$\{(\w+)\}", lambda one: arguments[one[1]], base)
            earlier = found.get(base)
            now = found[name] = Stage(
                name, earlier.base if earlier else base, list(earlier.said) if earlier else []
            )
        else:
            assert now is not None
            now.said.append((instruction, " ".join(rest.split())))
    return found
