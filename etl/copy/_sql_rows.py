r"""Parse the rows of a Dumpling `.sql` file.

    /*!40014 SET FOREIGN_KEY_CHECKS=0*/;
    /*!40101 SET NAMES binary*/;
    INSERT INTO `t` (`a`,`b`) VALUES
    (1,'it\'s'),
    (NULL,x'00ff');

A statement holds many rows, each in a line of its own; the list of columns is there when some are
generated. In strings Dumpling escapes NUL, newline, return, backslash, both quotes and ^Z by a
backslash, or with ``--escape-backslash=false`` doubles the single quote and nothing else.
Statements are taken apart in whole; one whose rows don't look like this is read row by row and
counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sluice.etl.copy._fields import (
    FieldPositions,
    Ints,
    positions_outside_quotes,
    quoted,
    special_byte_table,
)
from sluice.etl.copy.errors import DumpError

_QUOTE, _COMMA, _NEWLINE = ord("'"), ord(","), ord("\n")
_END = b");\n"
_SPECIAL = {
    escapes: special_byte_table(b"',\n" + (b"\\" if escapes else b"")) for escapes in (True, False)
}
_INSERT = re.compile(
    rb"\s*INSERT INTO `(?:[^`]|``)+`(?:\.`(?:[^`]|``)+`)?\s*(\([^\n]*\))?\s*VALUES(?:[ \t\r]*\n|["
    rb" \t]*(?=\())"
)
_NAME = re.compile(rb"`((?:[^`]|``)+)`")
_MAX_SHOWN_CHARS = 60


@dataclass(slots=True)
class RowStats:
    """Counts of how rows were parsed, summed over calls.

    `singly`: one after the other, as they had an odd shape.
    """

    rows: int = 0
    singly: int = 0


@dataclass(slots=True)
class SqlRows:
    """Take a file's text in pieces and give its rows statement by statement.

    `columns`: those of a statement that names none. `in_rows`: the text begins behind a row, of a
    statement that may go on.
    """

    file: str
    columns: Sequence[str]
    escapes: bool = True
    in_rows: bool = False
    offset: int = 0
    stats: RowStats = field(default_factory=RowStats)
    begun: bool = False
    quotes_text: bool = True
    """False where messages may quote nothing of the file, which has columns that are masked."""
    _rest: bytes = b""
    _named: Sequence[str] | None = None

    def feed(self, piece: bytes) -> Iterator[tuple[Sequence[str], FieldPositions, int]]:
        """Yield (columns, fields, offset of the fields' data) of the rows that end in this piece.

        The offset is in the file. Raises DumpError.
        """
        text = self._rest + piece
        at = 0
        if self.in_rows and not self.begun:
            self.in_rows = text.startswith(b"(")
        self.begun = True
        while at < len(text):
            if not self.in_rows:
                behind = self._head(text, at)
                if behind is None:
                    break
                at = behind
                continue
            end, rows = self._rows(text, at)
            if rows is not None:
                yield rows
            if end == at:
                break
            at = end
        self.offset += at
        self._rest = text[at:]

    def finish(self, *, whole: bool = True) -> None:
        """Check the end of the file, or with `whole` False of the range.

        Raises DumpError if it is cut off.
        """
        if self._rest.strip() or (self.in_rows and whole):
            raise DumpError(
                self.file,
                self.offset + len(self._rest),
                "the file ends in the middle of a statement: it is cut off. Dump again, or copy the"
                " file again",
            )

    def _head(self, text: bytes, at: int) -> int | None:
        """Return the position behind the line at `at`, which is between statements.

        None if it isn't whole.
        """
        if text[at : at + 1].isspace():
            return at + 1
        if text.startswith(b"/*", at) or text.startswith(b"--", at) or text.startswith(b"SET ", at):
            end = text.find(b"\n", at)
            return None if end < 0 else end + 1
        match = _INSERT.match(text, at)
        if match is None:
            if not b"INSERT INTO ".startswith(text[at : at + 12]) or text.find(b"\n", at) >= 0:
                raise self._error(at, text, 0, "INSERT INTO is expected here")
            return None
        names = match[1]
        self._named = None
        if names is not None:
            self._named = [_decoded(name) for name in _NAME.findall(names)]
        self.in_rows = True
        return match.end()

    def _rows(
        self, text: bytes, at: int
    ) -> tuple[int, tuple[Sequence[str], FieldPositions, int] | None]:
        """Return (the position behind the rows from `at` on that are whole, the rows)."""
        search = at
        while True:
            found = text.find(_END, search)
            stop = len(text) if found < 0 else found + len(_END)
            data = np.frombuffer(text, np.uint8, stop - at, at)
            marks = positions_outside_quotes(
                data, _SPECIAL[self.escapes], _QUOTE, escapes=self.escapes
            )
            behind = _statement_end(data, marks)
            if behind is not None:
                data, marks = data[:behind], marks[marks < behind]
            elif found >= 0:
                # All of them were inside of strings. The next look takes twice as much, or many
                # would be quadratic.
                search = at + 2 * len(data)
                continue
            break
        kind = data[marks] if len(marks) else np.zeros(0, np.uint8)
        newlines = marks[kind == _NEWLINE]
        if not len(newlines):
            return at, None
        last = int(newlines[-1]) + 1
        inner = marks < last
        names = self.columns if self._named is None else self._named
        fields = _one_row_a_line(data[:last], marks[inner], kind[inner], newlines, len(names))
        if fields is None:
            fields = self._singly(data[:last].tobytes(), len(names), at)
        self.stats.rows += len(fields.start)
        self.in_rows = data[last - 2] != ord(";")
        return at + last, (names, fields, self.offset + at)

    def _singly(self, text: bytes, columns: int, base: int) -> FieldPositions:
        """Rows in any layout, one after the other. Raises DumpError where there is none."""
        start, end = [], []
        at = 0
        value = _VALUE[self.escapes]
        while at < len(text):
            if text[at] in b" \r\n\t":
                at += 1
                continue
            if text[at] != ord("("):
                raise self._error(at, text, base, "a row is expected here")
            row = at
            count = 0
            while text[at] in b"(,":
                match = value.match(text, at + 1)
                if match is None:
                    raise self._error(
                        at + 1, text, base, "there is no value here that Dumpling would write"
                    )
                start.append(match.start(1))
                end.append(match.end(1))
                count, at = count + 1, match.end()
                if at >= len(text):
                    raise self._error(row, text, base, "the row doesn't end")
            if text[at] != ord(")") or text[at + 1 : at + 2] not in (b",", b";"):
                raise self._error(at, text, base, "a comma or the end of the row is expected here")
            if count != columns:
                raise self._error(
                    row, text, base, f"the row has {count} values, the table {columns} columns"
                )
            at += 2
        self.stats.singly += len(start) // columns
        shape = (len(start) // columns, columns)
        return FieldPositions(
            np.frombuffer(text, np.uint8),
            np.array(start, np.int64).reshape(shape),
            np.array(end, np.int64).reshape(shape),
        )

    def _error(self, at: int, text: bytes, base: int, what: str) -> DumpError:
        shown = quoted(text[at : at + _MAX_SHOWN_CHARS], is_shown=self.quotes_text)
        hint = "" if self.escapes else " (it is read as one of --escape-backslash=false)"
        return DumpError(self.file, self.offset + base + at, f"{what}{hint}: {shown}")


def _statement_end(data: np.ndarray, marks: Ints) -> int | None:
    """Return the position behind the first end of a statement that isn't inside of a string."""
    newlines = marks[data[marks] == _NEWLINE]
    newlines = newlines[newlines >= len(_END) - 1]
    ends = newlines[(data[newlines - 1] == ord(";")) & (data[newlines - 2] == ord(")"))]
    return int(ends[0]) + 1 if len(ends) else None


_VALUE = {
    True: re.compile(rb"\s*(NULL|x'[0-9a-fA-F]*'|'(?:[^'\\]|\\.|'')*+'|[-+0-9.eE]+)\s*", re.DOTALL),
    False: re.compile(rb"\s*(NULL|x'[0-9a-fA-F]*'|'(?:[^']|'')*+'|[-+0-9.eE]+)\s*", re.DOTALL),
}


def _one_row_a_line(
    data: np.ndarray, marks: Ints, kind: np.ndarray, newlines: Ints, columns: int
) -> FieldPositions | None:
    """Return the fields if every line is one row, else None.

    A row is `(a,b),` or, the last one of a statement, `(a,b);`.
    """
    rows = len(newlines)
    is_newline = kind == _NEWLINE
    behind_row = (kind == _COMMA) & (data[np.minimum(marks + 1, len(data) - 1)] == _NEWLINE)
    ends = (marks - 2 * is_newline)[~behind_row]
    if len(ends) != rows * columns or newlines[0] < 3:
        return None
    end = ends.reshape(rows, columns)
    start = np.empty_like(end)
    start[0, 0], start[1:, 0] = 1, newlines[:-1] + 2
    start[:, 1:] = end[:, :-1] + 1
    closing, separator = data[newlines - 2], data[newlines - 1]
    whole = (
        (end[:, -1] == newlines - 2).all()
        and (data[start[:, 0] - 1] == ord("(")).all()
        and (closing == ord(")")).all()
        and (separator[:-1] == _COMMA).all()
        and separator[-1] in (_COMMA, ord(";"))
        and (start < end).all()
    )
    return FieldPositions(data, start, end) if whole else None


def _decoded(name: bytes) -> str:
    return name.replace(b"``", b"`").decode("utf-8", "surrogateescape")
