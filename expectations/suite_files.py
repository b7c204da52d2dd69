"""Keep the folder of suites: one TOML file a table, which people edit and review.

A file that `write` made holds the digest of its own text. Once that digest no longer fits, the file
was edited, and belongs to its editor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from urllib.parse import quote

from sluice.etl.settings import Settings
from sluice.expectations.propose import propose, propose_for_replication
from sluice.expectations.server_dataset import open_downstream_dataset
from sluice.expectations.suite import Expectation, QualityError, Suite, SuiteError
from sluice.tidb.table_name import fits

__all__ = ["SuiteFolder", "WriteResult", "propose_suites", "text_of"]

_ENDING = ".toml"
_DIGEST = "# proposed: "
_HEAD = """\
# What is expected of one table. `sluice quality init` has proposed it, from the schema and a
# profile of the rows. Edit it, and keep it in git. What was edited is left alone by the next init:
# it knows by the line that follows.
"""
_LEGEND = """\

# severity   warn: it is reported. fail: the run fails as well. pause: applying pauses, too, until
#            `sluice resume`.
# on         only there, as in on = ["downstream", "lake", "copy"]
"""


class WriteResult(Enum):
    """Outcome for a file."""

    NEW = "new"
    AGAIN = "proposed again"
    SAME = "as it was"
    EDITED = "edited, left alone"


class SuiteFolder:
    """The files. Every method raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def suites(self) -> list[Suite]:
        """Return all of them, by name. Raises SuiteError, also if two files are about one table."""
        found: dict[str, Suite] = {}
        for path in sorted(self.folder.glob(f"*{_ENDING}")):
            suite = self._read(path)
            if suite.name in found:
                raise SuiteError(f"{path}: another file of this folder is about {suite.name}, too")
            found[suite.name] = suite
        return [found[name] for name in sorted(found)]

    def path(self, name: str) -> Path:
        """Return the path of a table's file."""
        return self.folder / f"{quote(name, safe='._-')}{_ENDING}"

    def write(self, suite: Suite, *, over_edited: bool = False) -> WriteResult:
        """Write a proposal, but not over an edited file unless `over_edited`."""
        path, text = self.path(suite.name), text_of(suite)
        try:
            there = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            there = ""
        if there == text:
            return WriteResult.SAME
        if there and not _untouched(there) and not over_edited:
            return WriteResult.EDITED
        self.folder.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
        return WriteResult.AGAIN if there else WriteResult.NEW

    def _read(self, path: Path) -> Suite:
        try:
            return Suite.parse(path.read_text(encoding="utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise SuiteError(f"{path}: {error}") from None


def text_of(suite: Suite) -> str:
    """Return the content of a suite's file."""
    parts = [_LEGEND, f"table = {_value(suite.name)}\n", *map(_block, suite.expectations)]
    body = "\n".join(parts)
    return f"{_HEAD}{_DIGEST}{_digest(body)}\n{body}"


def _block(expectation: Expectation) -> str:
    lines = ["[[expect]]", f"expectation = {_value(expectation.expectation)}"]
    plain = {
        key: value for key, value in expectation.arguments.items() if not isinstance(value, Mapping)
    }
    lines += [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    lines.append(f"severity = {_value(expectation.severity)}")
    if expectation.on:
        lines.append(f"on = {_value(list(expectation.on))}")
    if expectation.why:
        lines.append(f"why = {_value(expectation.why)}")
    for key, value in expectation.arguments.items():
        if isinstance(value, Mapping):
            lines += [
                f"[expect.{_key(key)}]",
                *(f"{_key(name)} = {_value(one)}" for name, one in value.items()),
            ]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _text(key)


def _value(value: object) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"{value!r} has no form in TOML")


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _untouched(text: str) -> bool:
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(_DIGEST):
            return line.removeprefix(_DIGEST).strip() == _digest("".join(lines[number + 1 :]))
    return False


OnSuiteWritten = Callable[[Suite, Path, WriteResult], None]


def propose_suites(
    settings: Settings, globs: Sequence[str], say: OnSuiteWritten, *, over_edited: bool = False
) -> None:
    """Propose suites for the downstream's tables at its checkpoint, and for the replication.

    `globs` select tables (``schema.table``, also with * and ?); all without any. Raises
    QualityError, DownstreamError, OSError.
    """
    folder = SuiteFolder(Path(settings.quality.suites))
    with open_downstream_dataset(settings) as place:
        tables = frozenset(place.tables())
        chosen = sorted(
            name for name in tables if not globs or any(fits(name, glob) for glob in globs)
        )
        if not chosen:
            raise QualityError(
                f"there is no such table downstream: {', '.join(globs) or 'it is empty'}"
            )
        for name in chosen:
            _write(folder, propose(place, name, tables), say, over_edited=over_edited)
    if not globs:
        _write(folder, propose_for_replication(), say, over_edited=over_edited)


def _write(folder: SuiteFolder, suite: Suite, say: OnSuiteWritten, *, over_edited: bool) -> None:
    say(suite, folder.path(suite.name), folder.write(suite, over_edited=over_edited))
