r"""Parse the rows of a Dumpling `.csv` file, and detect what separates its fields.

Dumpling writes nowhere which ``--csv-separator``, ``--csv-delimiter`` and
``--csv-line-terminator`` it was given. The header line, if there is one, shows it: the names of
the columns are known, and what is between them, around them and behind them is what it is. With
backslash escapes (the default) NUL, newline, return and backslash are escaped in every value,
besides them the delimiter, or where there is none the first byte of the separator; without
(``--escape-backslash=false``) the delimiter is doubled. NULL is ``\N`` outside of delimiters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sluice.etl.copy._fields import (
    Bytes,
    FieldPositions,
    Ints,
    positions_outside_quotes,
    quoted,
    special_byte_table,
)
from sluice.etl.copy._sql_rows import RowStats
from sluice.etl.copy.errors import CopyError, DumpError
from sluice.relay.json_codec import JsonDocument

_DELIMITERS = (b'"', b"'", b"")
_TERMINATORS = (b"\r\n", b"\n")
_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class CsvFormat(JsonDocument):
    """The separators of fields and rows. None: to be detected from the header."""

    separator: str | None = None
    delimiter: str | None = None
    terminator: str | None = None
    header: bool = True
    escapes: bool = True
    null: str = "\\N"

    @property
    def is_known(self) -> bool:
        """Return whether nothing is left to detect."""
        return None not in (self.separator, self.delimiter, self.terminator)

    def check(self) -> None:
        """Raise CopyError for what can't be read without guessing."""
        for name, text in (("separator", self.separator), ("line terminator", self.terminator)):
            if text == "":
                raise CopyError(
                    f"the {name} of CSV files can't be empty: rows could not be separated"
                )
        if self.delimiter is not None and len(self.delimiter.encode()) > 1:
            raise CopyError(
                f"a CSV delimiter of several bytes, {self.delimiter!r}: Dumpling escapes its first"
                " byte only, so values that hold it can't be distinguished from its end."
                " Dump again with one of one byte"
            )
        if self.delimiter == "" and not self.escapes:
            raise CopyError(
                "CSV files without delimiter and without backslash escapes: a value that holds the"
                " separator can't be distinguished from two values. Dump again with one of the"
                " two"
            )
        if self.delimiter == "" and self.null != "\\N":
            raise CopyError(
                f"CSV files without delimiter in which NULL is {self.null!r}: it can't be"
                f" distinguished from the text {self.null!r}. Dump again with a delimiter, or"
                " without --csv-null-value"
            )

    def header_line(self, columns: Sequence[str]) -> bytes:
        """Return the header as Dumpling writes it."""
        assert (
            self.separator is not None
            and self.delimiter is not None
            and self.terminator is not None
        )
        quote, separator = self.delimiter.encode(), self.separator.encode()
        names = [
            _escaped(
                name.encode("utf-8", "surrogateescape"), quote, separator, escapes=self.escapes
            )
            for name in columns
        ]
        return separator.join(quote + name + quote for name in names) + self.terminator.encode()


def detect_format(
    file: str,
    head: bytes,
    columns: Sequence[str],
    given: CsvFormat,
    *,
    quotes_text: bool = True,
) -> CsvFormat:
    """Return `given` with what it leaves open taken from the header at the beginning of `head`.

    `quotes_text`: see `CsvRows`.

    Raises DumpError when the header doesn't show it, or shows something else than `given` has.
    """
    given.check()
    if given.is_known:
        return given
    if not given.header:
        raise CopyError(
            "CSV files without a header don't show how they are separated: give the separator, the"
            " delimiter and the line terminator that Dumpling was given"
        )
    found = {
        form
        for form in _candidates(head, columns, given)
        if head.startswith(form.header_line(columns))
    }
    if len(found) != 1:
        shown = quoted(head[:200], is_shown=quotes_text)
        raise DumpError(
            file,
            0,
            f"the header doesn't show how fields are separated ({len(found)} ways are possible),"
            f" columns {', '.join(columns)} are expected: {shown}. Give the separator, delimiter"
            " and line terminator that Dumpling was given, or that there is no header",
        )
    form = found.pop()
    form.check()
    return form


def _candidates(head: bytes, columns: Sequence[str], given: CsvFormat) -> Iterator[CsvFormat]:
    first = columns[0].encode("utf-8", "surrogateescape")
    for quote in _DELIMITERS if given.delimiter is None else (given.delimiter.encode(),):
        if quote == b"" and not given.escapes:
            continue
        begin = quote + _escaped(first, quote, b"", escapes=given.escapes) + quote
        if not head.startswith(begin):
            continue
        for separator in _separators(head, len(begin), quote, columns, given):
            for terminator in (
                _TERMINATORS if given.terminator is None else (given.terminator.encode(),)
            ):
                try:
                    form = replace(
                        given,
                        delimiter=quote.decode(),
                        separator=separator.decode(),
                        terminator=terminator.decode(),
                    )
                except UnicodeDecodeError:
                    continue
                yield form


def _separators(
    head: bytes, at: int, quote: bytes, columns: Sequence[str], given: CsvFormat
) -> Iterator[bytes]:
    if given.separator is not None:
        yield given.separator.encode()
        return
    if len(columns) == 1:
        if quote:  # values are inside of quotes, so whatever it is makes no difference
            yield b","
        return
    second = columns[1].encode("utf-8", "surrogateescape")
    line = head[at : at + 256]
    for size in range(1, 17):
        separator = line[:size]
        name = quote + _escaped(second, quote, separator, escapes=given.escapes) + quote
        if line.startswith(name, size):
            yield separator


def _escaped(value: bytes, quote: bytes, separator: bytes, *, escapes: bool) -> bytes:
    if not escapes:
        return value.replace(quote, quote + quote) if quote else value
    special = quote[:1] or separator[:1]
    out = value.replace(b"\\", b"\\\\")
    if special and special != b"\\":
        out = out.replace(special, b"\\" + special)
    return out.replace(b"\0", b"\\0").replace(b"\r", b"\\r").replace(b"\n", b"\\n")


@dataclass(slots=True)
class CsvRows:
    """Take a file's text in pieces and give its rows piece by piece.

    `at_header`: the text begins with the header.
    """

    file: str
    columns: Sequence[str]
    form: CsvFormat
    at_header: bool = True
    offset: int = 0
    stats: RowStats = field(default_factory=RowStats)
    quotes_text: bool = True
    """False where messages may quote nothing of the file, which has columns that are masked."""
    _rest: bytes = b""

    def feed(self, piece: bytes) -> Iterator[tuple[Sequence[str], FieldPositions, int]]:
        """Yield (columns, fields, offset of the fields' data) of the rows that end in this piece.

        The offset is in the file. Raises DumpError.
        """
        text = self._rest + piece
        if self.at_header:
            header = self.form.header_line(self.columns)
            if len(text) < len(header) and header.startswith(text):
                self._rest = text
                return
            if not text.startswith(header):
                shown = quoted(text[: len(header) + _MAX_SHOWN_CHARS], is_shown=self.quotes_text)
                raise DumpError(
                    self.file,
                    0,
                    f"the header {header.decode('utf-8', 'replace')!r} is expected: {shown}",
                )
            self.at_header = False
            self.offset += len(header)
            text = text[len(header) :]
        data = np.frombuffer(text, np.uint8)
        marks, is_end = self._delimiter_positions(data)
        ends = np.flatnonzero(is_end)
        if not len(ends):
            self._rest = text
            return
        terminator = len((self.form.terminator or "").encode())
        last = int(marks[ends[-1]]) + terminator
        fields = self._fields(data[:last], marks[: ends[-1] + 1], ends, terminator)
        self.stats.rows += len(fields.start)
        yield self.columns, fields, self.offset
        self.offset += last
        self._rest = text[last:]

    def finish(self, *, whole: bool = True) -> None:
        """Check the end of the file.

        Raises DumpError if it ends in the middle of a row or of its header.
        """
        if self._rest or (self.at_header and whole):
            raise DumpError(
                self.file,
                self.offset + len(self._rest),
                "the file ends in the middle of a row: it is cut off, or its line terminator is"
                f" another one than {self.form.terminator!r}",
            )

    def _delimiter_positions(self, data: Bytes) -> tuple[Ints, np.ndarray]:
        """Return where separators and terminators begin, ascending, and which are terminators."""
        form = self.form
        separator, terminator = (form.separator or "").encode(), (form.terminator or "").encode()
        quote = ord(form.delimiter) if form.delimiter else -1
        special = (
            separator[:1]
            + terminator[:1]
            + (form.delimiter or "").encode()
            + (b"\\" if form.escapes else b"")
        )
        at = positions_outside_quotes(
            data, special_byte_table(special), quote, escapes=form.escapes
        )
        ends, separates = (
            _starts_with_at(data, at, terminator),
            _starts_with_at(data, at, separator),
        )
        found = ends | separates
        at, ends = at[found], ends[found]
        if len(separator) > 1 or len(terminator) > 1:
            at, ends = _without_overlaps(at, ends, len(separator), len(terminator))
        return at, ends

    def _fields(self, data: Bytes, marks: Ints, ends: Ints, terminator: int) -> FieldPositions:
        columns, rows = len(self.columns), len(ends)
        expected = np.arange(1, rows + 1) * columns - 1
        if len(marks) != rows * columns or (ends != expected).any():
            wrong = int(np.flatnonzero(ends != expected)[0])
            row = int(marks[ends[wrong - 1]]) + terminator if wrong else 0
            count = int(ends[wrong] - (ends[wrong - 1] if wrong else -1))
            text = data[row : row + _MAX_SHOWN_CHARS].tobytes()
            shown = quoted(text, is_shown=self.quotes_text)
            raise DumpError(
                self.file,
                self.offset + row,
                f"the row has {count} fields, {columns} columns are expected"
                f" ({', '.join(self.columns)}): {shown}",
            )
        end = marks.reshape(rows, columns)
        start = np.empty_like(end)
        start[0, 0], start[1:, 0] = 0, end[:-1, -1] + terminator
        start[:, 1:] = end[:, :-1] + len((self.form.separator or "").encode())
        return FieldPositions(data, start, end)


def _starts_with_at(data: Bytes, at: Ints, text: bytes) -> np.ndarray:
    """Return at which of these positions `text` stands."""
    found: np.ndarray = data[at] == text[0]
    for n in range(1, len(text)):
        found &= data[np.minimum(at + n, len(data) - 1)] == text[n]
    if len(text) > 1:
        found &= at <= len(data) - len(text)
    return found


def _without_overlaps(
    at: Ints, ends: np.ndarray, separator: int, terminator: int
) -> tuple[Ints, np.ndarray]:
    """Return the marks without those that begin inside of the mark before them."""
    size = np.where(ends, terminator, separator)
    if len(at) < 2 or (at[1:] >= at[:-1] + size[:-1]).all():
        return at, ends
    keep, behind = np.zeros(len(at), np.bool_), -1
    for n, (where, width) in enumerate(zip(at.tolist(), size.tolist(), strict=True)):
        if where >= behind:
            keep[n], behind = True, where + width
    return at[keep], ends[keep]
