"""Random histories: which tables there are, and which schema changes come between transactions.

A history is drawn from a `random.Random`; under Hypothesis one whose choices it records and
shrinks. `FEATURES` names the unusual things that a history may hold: each can be left out, so that
what a difference needs can be found by trying.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from tests.judge import kinds
from tests.judge.features import FEATURES
from tests.judge.invented_tidb import Upstream, create_schema, create_table
from tests.judge.kinds import Kind
from tests.judge.tables import Column, Generated, Index, Partition, Row, Table, quoted
from tests.judge.writing import Writing, is_zero

_NAMES = ("id", "v", "Name", "k", "email", "total", "ref", "state")
_ODD_NAMES = ("a.b", "a b", "x`y", "50%", "s'q", 'd"q', "Ünï", "select", "%s", "semi;", "Key")
_TABLES = ("t", "acc", "Orders", "log")
_LONG = (0xF9, 0xFA, 0xFB, 0xFC)
_MOST_TABLES = 14
_CROWDED = 90


class History(Writing):
    """Grows an `Upstream` statement by statement.

    `late`: whether sessions with the definition before write into partitions that are gone.
    """

    late = True

    def __init__(self, rng: random.Random, features: Collection[str] = FEATURES) -> None:
        super().__init__(rng, features)
        self._most_tables = (
            _CROWDED if self.has("many tables") and rng.random() < 0.15 else _MOST_TABLES
        )
        self._schema = create_schema(self.upstream, self._schema_name())
        if self.has("routes") and rng.random() < 0.3:
            self.upstream.targets[self._schema] = "elsewhere"

    def grow(self, steps: int) -> Upstream:
        """Take random steps, most of them transactions, and note the state now and then."""
        for _ in range(self.rng.randint(1, 3)):
            self._create()
        if self.has("merged") and self.rng.random() < 0.4:
            self._create_merged()
        for _ in range(steps):
            if not self.upstream.tables:
                self._create()
            if self.rng.random() < 0.35:
                self._ddl()
            else:
                self.rng.choice(self.writes())()
            if self.rng.random() < 0.07:
                self.upstream.note()
        self.upstream.note()
        return self.upstream

    # --- tables
    # ---------------------------------------------------------------------------------------------

    def _name(self, plain: tuple[str, ...], odd: tuple[str, ...] = _ODD_NAMES) -> str:
        return self.rng.choice(odd if self.has("odd names") and self.rng.random() < 0.4 else plain)

    def _schema_name(self, *plain: str) -> str:
        if self.has("dotted schemas") and self.rng.random() < 0.25:
            return "o.ther" if plain else "my.db"
        return plain[0] if plain else self._name(("shop", "Bank"), ("my db", "d`b", "50%"))

    def _new_name(self, plain: tuple[str, ...], taken: Collection[str]) -> str:
        name = self._name(plain)
        taken = {t.lower() for t in taken}
        while name.lower() in taken:
            name += str(self.rng.randint(0, 9))
        return name

    def _kind(self, choices: tuple[Kind, ...]) -> Kind:
        while True:
            kind = self.rng.choice(choices)
            if kind.family == "timestamp" and not self.has("timestamps"):
                continue
            if kind.charset in ("latin1", "ascii", "gbk") and not self.has("collations"):
                continue
            if kind.collate in ("utf8mb4_general_ci", "utf8mb4_unicode_ci") and not self.has(
                "collations"
            ):
                continue
            return kind

    def _create(self) -> None:
        name = self._new_name(_TABLES, [t.name for t in self.upstream.tables.values()])
        self._create_table(name, partitioned=self.has("partitions") and self.rng.random() < 0.5)

    def _create_merged(self) -> None:
        """Some tables that the settings merge downstream.

        None of them is altered. None has a row with a key of another's, unless a column keeps them
        apart.
        """
        up = self.upstream
        first = self._create_table("part", partitioned=False)
        merged = [first, *(self._made_like(first, self._schema, f"part_{n}") for n in range(2))]
        up.by_source = first.primary is not None and self.rng.random() < 0.5
        for table in merged:
            del up.tables[table.id]
            table.together = [] if up.by_source else merged
        up.merged = merged

    def _create_table(self, name: str, *, partitioned: bool) -> Table:
        up, rng = self.upstream, self.rng
        columns: list[Column] = []
        retyped = self.has("change name and type") or self.has("modify type")
        for number in range(rng.randint(2, 5)):
            column = self._new_name(_NAMES, [c.name for c in columns])
            kind = self._kind(
                kinds.KEYS
                if number < 2
                else kinds.CONVERTIBLE
                if retyped and rng.random() < 0.6
                else kinds.PLAIN
            )
            columns.append(Column(number + 1, column, kind, nullable=number > 0))
        table = Table(up.new_id(), self._schema, name, columns)
        if partitioned:
            self._partition(table)
        self._keys(table)
        if table.partitions and any(
            table.column(c).kind.is_text for i in table.indexes if i.primary for c in i.columns
        ):
            table.clustered = False  # a collated text's sort key here isn't TiDB's
        self._special_columns(table)
        create_table(up, table)
        return table

    def _partition(self, table: Table) -> None:
        table.columns[0] = replace(
            table.columns[0], kind=replace(kinds.INT, values=lambda r: r.randint(0, 29))
        )
        table.by = table.columns[0].name
        lists = self.has("lists") and self.rng.random() < 0.4
        table.partitions = [
            Partition(
                self.upstream.new_id(),
                f"p{n}",
                below,
                tuple(range(below - 10, below)) if lists else (),
            )
            for n, below in enumerate((10, 20, 30))
        ]
        if lists:
            table.columns[0] = replace(table.columns[0], nullable=False)

    def _keys(self, table: Table) -> None:
        rng = self.rng
        heap = self.has("heap tables") and rng.random() < 0.35
        first, second = table.columns[0], table.columns[1]
        if not heap:
            table.clustered = not (self.has("nonclustered") and rng.random() < 0.4)
            columns = (first.name,)
            if rng.random() < 0.3:
                columns = (first.name, second.name)
                table.columns[1] = replace(second, nullable=False)
            table.indexes.append(Index(1, "PRIMARY", columns, True, True))
            if not self._usable(table, columns):
                table.columns[0] = replace(first, kind=kinds.INT)
        table.max_index = 1
        if rng.random() < 0.5 and not table.partitions and second.kind.family not in ("json",):
            table.max_index += 1
            table.indexes.append(
                Index(table.max_index, f"u{table.max_index}", (second.name,), unique=True)
            )
        self._unusual_keys(table)

    def _unusual_keys(self, table: Table) -> None:
        rng = self.rng
        if table.partitions:
            return
        second = table.columns[1]
        if self.has("composite unique") and len(table.columns) > 2 and rng.random() < 0.4:
            third = table.columns[2] = replace(table.columns[2], kind=self._kind(kinds.KEYS))
            table.max_index += 1
            names = (second.name, third.name) if rng.random() < 0.5 else (third.name, second.name)
            table.indexes.append(Index(table.max_index, f"u{table.max_index}", names, unique=True))
        if (
            self.has("prefix unique")
            and second.kind.family in ("text", "bytes")
            and rng.random() < 0.5
        ):
            table.max_index += 1
            table.indexes.append(
                Index(table.max_index, f"u{table.max_index}", (second.name,), unique=True, prefix=3)
            )

    @staticmethod
    def _usable(table: Table, columns: tuple[str, ...]) -> bool:
        return all(
            table.column(name).kind.family not in ("json", "float", "double") for name in columns
        )

    def _special_columns(self, table: Table) -> None:
        rng = self.rng
        number = max(c.id for c in table.columns)
        names = [c.name for c in table.columns]
        integers = [c for c in table.columns if c.kind.family == "int"]
        if self.has("generated") and integers and rng.random() < 0.4:
            source = rng.choice(integers).name
            number += 1
            name = self._new_name(("g",), names)
            generated = Generated(
                f"{quoted(source)} % 7", rng.random() < 0.5, lambda row, s=source: _modulo(row[s])
            )
            table.columns.append(Column(number, name, kinds.BIGINT, generated=generated))
            names.append(name)
        times = [c for c in table.columns if c.kind.family == "timestamp"]
        if self.has("generated timestamp") and times and rng.random() < 0.5:
            source = rng.choice(times).name
            number += 1
            generated = Generated(
                f"date({quoted(source)})", True, lambda row, s=source: _day_in_east(row[s])
            )
            names.append(self._new_name(("day",), names))
            table.columns.append(Column(number, names[-1], kinds.DATE, generated=generated))
        if self.has("on update") and rng.random() < 0.3:
            number += 1
            table.columns.append(
                Column(number, self._new_name(("changed",), names), kinds.TIMESTAMP, on_update=True)
            )
        table.max_column = number

    # --- schema changes
    # ---------------------------------------------------------------------------------------------

    def _ddl(self) -> None:
        steps: list[Callable[[], None]] = [self._add_index]
        for feature, step in (
            ("add column", self._add_column),
            ("drop column", self._drop_column),
            ("change name and type", self._change_name_and_type),
            ("modify type", self._modify_type),
            ("rename column", self._rename_column),
            ("several at once", self._several),
            ("drop unique", self._drop_unique),
            ("rename", self._rename),
            ("rename tables", self._rename_tables),
            ("like", self._like),
            ("truncate", self._truncate),
            ("drop table", self._drop),
            ("exchange", self._exchange),
            ("late rows", self._drop_partition),
            ("reorganize", self._reorganize),
            ("partitions", self._create),
            ("alike tables", self._create_alike),
            ("races", self._race),
        ):
            if self.has(feature):
                steps += [step, step]
        self.rng.choice(steps)()

    def _alter(self, table: Table, kind: int, text: str) -> Any:
        return self.upstream.job(
            kind,
            f"ALTER TABLE {self._as_named(table)} {text}",
            schema_id=table.schema_id,
            table_id=table.id,
        )

    def _as_named(self, table: Table) -> str:
        return quoted(table.name)

    def _add_index(self) -> None:
        table = self._table()
        suits = [c for c in table.columns if c.kind in kinds.KEYS and c.kind.family != "bytes"]
        if not suits:
            return
        column = self.rng.choice(suits)
        index = Index(
            table.max_index + 1,
            f"i{table.max_index + 1}",
            (column.name,),
            unique=self.rng.random() < 0.5 and not table.partitions,
        )
        if index.unique and table.has_twins(index, self.upstream.new_collation):
            return
        job = self._alter(
            table,
            7,
            f"ADD {'UNIQUE ' if index.unique else ''}INDEX"
            f" {quoted(index.name)}({quoted(column.name)})",
        )
        table.indexes.append(index)
        table.max_index = index.id
        for _ in range(3):
            job.state()
        job.finish(table)

    def _add_column(self) -> None:
        table = self._table()
        text, change = self._adding(table, self.rng.randint(0, len(table.columns)))
        job = self._alter(table, 5, text)
        change()
        for _ in range(3):
            job.state()
        job.finish(table)

    def _adding(self, table: Table, at: int) -> tuple[str, Callable[[], None]]:
        """A new column behind `at` others: what a statement says, and what makes it so in the
        model.
        """
        rng = self.rng
        kind = self._kind(kinds.PLAIN)
        name = self._new_name(_NAMES, [c.name for c in table.columns])
        default, spelled = None, None
        if (
            kind.family not in ("json", "bytes", "enum", "set")
            and kind.tp not in _LONG
            and rng.random() < 0.7
        ):
            default = kind.value(rng)
            if (
                kind.is_text
                and not kind.values
                and (not self.has("odd defaults") or not _is_text(default))
            ):
                default = b"plain"
        if kind.family == "date" and default and self.has("spelled defaults"):
            spelled = "-".join(str(int(part)) for part in default.split("-"))
        nullable = default is None or rng.random() < 0.5
        text = Column(0, name, kind, nullable, default, default, spelled).sql()
        if spelled is not None:
            text = text.replace(default, spelled)
        place = (
            ""
            if at == len(table.columns)
            else f" AFTER {quoted(table.columns[at - 1].name)}"
            if at
            else " FIRST"
        )

        def change() -> None:
            column = Column(table.max_column + 1, name, kind, nullable, default, default, spelled)
            table.columns.insert(min(at, len(table.columns)), column)
            table.max_column = column.id
            for row in table.rows:
                row.values[column.id] = default

        return f"ADD COLUMN {text}{place}", change

    def _drop_column(self) -> None:
        table = self._table()
        found = self._dropping(table)
        if found is None:
            return
        text, change = found
        job = self._alter(table, 6, text)
        job.state()
        job.state()
        job.announce(1)
        change()
        job.state()
        job.finish(table, schema_state=0)

    def _dropping(self, table: Table, but: str = "") -> tuple[str, Callable[[], None]] | None:
        free = [c for c in table.columns if c.name not in self._used(table) and c.name != but]
        if not free or len(table.columns) < 3:
            return None
        column = self.rng.choice(free)

        def change() -> None:
            table.columns.remove(column)
            for row in table.rows:
                row.values.pop(column.id)

        return f"DROP COLUMN {quoted(column.name)}", change

    @staticmethod
    def _used(table: Table) -> set[str]:
        """The columns that something hangs on."""
        used = {name for index in table.indexes for name in index.columns} | {table.by}
        return used | {
            c.name
            for c in table.columns
            for g in table.columns
            if g.generated and quoted(c.name) in g.generated.expression
        }

    def _change_name_and_type(self) -> None:
        table = self._table()
        self._retype(table, self._new_name(_NAMES, [c.name for c in table.columns]))

    def _modify_type(self) -> None:
        self._retype(self._table(), "")

    def _retype(self, table: Table, name: str) -> None:
        found = self._retyping(table, name)
        if found is None:
            return
        text, change, _ = found
        job = self._alter(table, 12, text)
        change()
        for _ in range(3):
            job.state()
        job.finish(table)

    def _retyping(self, table: Table, name: str) -> tuple[str, Callable[[], None], str] | None:
        """Another type for a column, and a new name unless it is "": statement, change, the
        column's name now.
        """
        rng, used = self.rng, self._used(table)
        choices = [
            (column, to, value)
            for column in table.columns
            if column.name not in used
            and not column.generated
            and not column.on_update
            and not any(is_zero(row.values[column.id], column.kind) for row in table.rows)
            for suits, to, value in kinds.CONVERSIONS
            if suits(column.kind)
        ]
        if not choices:
            return None
        column, to, value = rng.choice(choices)
        try:
            changed = [
                None if (old := row.values[column.id]) is None else value(old) for row in table.rows
            ]
        except ValueError:
            return None  # TiDB would refuse the statement: a text is no document
        new = Column(0, name or column.name, to, column.nullable)

        def change() -> None:
            at = table.columns.index(column)
            table.columns[at] = replace(new, id=table.max_column + 1, made_from=column.id)
            table.max_column += 1
            for row, became in zip(table.rows, changed, strict=True):
                del row.values[column.id]
                row.values[table.max_column] = became

        verb = (
            f"CHANGE COLUMN {quoted(column.name)} {new.sql()}"
            if name
            else f"MODIFY COLUMN {new.sql()}"
        )
        return verb, change, column.name

    def _rename_column(self) -> None:
        table = self._table()
        free = [
            c
            for c in table.columns
            if not any(
                g.generated and quoted(c.name) in g.generated.expression for g in table.columns
            )
        ]
        if not free:
            return
        column = self.rng.choice(free)
        name = self._new_name(_NAMES, [c.name for c in table.columns])
        job = self._alter(table, 12, f"RENAME COLUMN {quoted(column.name)} TO {quoted(name)}")
        table.columns[table.columns.index(column)] = replace(column, name=name)
        table.indexes = [
            replace(i, columns=tuple(name if c == column.name else c for c in i.columns))
            for i in table.indexes
        ]
        table.by = name if table.by == column.name else table.by
        job.finish(table)

    def _several(self) -> None:
        """One statement retypes a column, drops another one and adds one, in any order."""
        table = self._table()
        name = (
            self._new_name(_NAMES, [c.name for c in table.columns])
            if self.rng.random() < 0.5
            else ""
        )
        retyped = self._retyping(table, name)
        dropped = self._dropping(table, retyped[2] if retyped else "")
        added = self._adding(table, self.rng.choice((0, len(table.columns))))
        if name and f"ADD COLUMN {quoted(name)} " in added[0]:
            return
        changes = [added, *([dropped] if dropped else []), *([retyped[:2]] if retyped else [])]
        if len(changes) < 2:
            return
        self.rng.shuffle(changes)
        job = self._alter(table, 61, ", ".join(text for text, _ in changes))
        for _, change in changes:
            change()
            job.state()
        version = job.state()
        if self.has("other sessions"):
            self._meanwhile(table, version)
            job.finish(table, schema_state=0, version=version)
        else:
            job.finish(table, schema_state=0)

    def _meanwhile(self, table: Table, version: int) -> None:
        """Other sessions create, drop and write tables between a multi-schema change's version and
        its binlog.
        """
        for _ in range(self.rng.randint(0, 2)):
            others = [t for t in self.upstream.tables.values() if t is not table]
            step = self.rng.randrange(3)
            if step == 0 and len(self.upstream.tables) < self._most_tables:
                self._create()
            elif step == 1 and len(others) > 1 and self.has("drop table"):
                self._drop(self.rng.choice(others))
            elif others:
                self._write(only=self.rng.choice(others))
        for _ in range(self.rng.randint(0, 2)):
            self._write(version, only=table)

    def _race(self) -> None:
        """Two sessions race ADD COLUMN IF NOT EXISTS: the job of the one that comes second changes
        nothing.
        """
        table = self._table()
        column = self.rng.choice(table.columns)
        self._alter(
            table, self.rng.choice((5, 7, 61)), f"ADD COLUMN IF NOT EXISTS {column.sql()}"
        ).change_nothing()

    def _drop_unique(self) -> None:
        """Between the state in which TiDB stops looking at the index and the job's end, sessions
        write equal values.
        """
        tables = [
            t
            for t in self.upstream.tables.values()
            if any(i.unique and not i.primary for i in t.indexes)
        ]
        if not tables:
            return
        table = self.rng.choice(tables)
        index = self.rng.choice([i for i in table.indexes if i.unique and not i.primary])
        job = self._alter(table, 8, f"DROP INDEX {quoted(index.name)}")
        job.state()
        version = job.state()
        table.unenforced.add(index.name)
        for _ in range(self.rng.randint(0, 2)):
            self._write(version, only=table)
        job.state()
        table.indexes.remove(index)
        table.unenforced.discard(index.name)
        job.finish(table, schema_state=0)

    def _rename(self) -> None:
        table = self._table()
        name = self._new_name(_TABLES, [t.name for t in self.upstream.tables.values()])
        job = self.upstream.job(
            14,
            f"RENAME TABLE {quoted(table.name)} TO {quoted(name)}",
            schema_id=table.schema_id,
            table_id=table.id,
        )
        table.name = name
        job.finish(table)

    def _rename_tables(self) -> None:
        """Two tables exchange their names."""
        if len(self.upstream.tables) < 2:
            return
        one, two = self.rng.sample(list(self.upstream.tables.values()), 2)
        schemas = self.upstream.schemas
        a, b = (f"{quoted(schemas[t.schema_id])}.{quoted(t.name)}" for t in (one, two))
        between = f"{quoted(schemas[one.schema_id])}.`tmp`"
        job = self.upstream.job(
            47,
            f"RENAME TABLE {a} TO {between}, {b} TO {a}, {between} TO {b}",
            schema_id=one.schema_id,
            table_id=one.id,
        )
        first, last = one.shape(), one
        first.name = "tmp"
        one.name, two.name, one.schema_id, two.schema_id = (
            two.name,
            one.name,
            two.schema_id,
            one.schema_id,
        )
        job.finish(
            tables=[first, two, last], args=[[], [first.schema_id, two.schema_id, last.schema_id]]
        )

    def _create_alike(self) -> None:
        """A table that many have, with a number for a key, and some more of its kind."""
        if len(self.upstream.tables) + 4 > self._most_tables:
            return
        names = [t.name for t in self.upstream.tables.values()]
        columns = [
            Column(
                1, "id", self.rng.choice((kinds.INT, kinds.BIGINT, kinds.UBIGINT)), nullable=False
            )
        ]
        for number in range(2, self.rng.randint(3, 5)):
            kind = self._kind(
                tuple(kind for kind in kinds.PLAIN if kind.family not in ("bytes", "bit", "json"))
            )
            columns.append(Column(number, f"c{number}", kind))
        table = Table(self.upstream.new_id(), self._schema, self._new_name(("x",), names), columns)
        table.indexes.append(Index(1, "PRIMARY", ("id",), True, True))
        if columns[1].kind in kinds.KEYS and self.rng.random() < 0.4:
            table.indexes.append(Index(2, "u2", ("c2",), unique=True))
        table.max_index = len(table.indexes)
        create_table(self.upstream, table)
        self._alike = [table]
        for _ in range(self.rng.randint(3, self._most_tables - len(self.upstream.tables))):
            names = [t.name for t in self.upstream.tables.values()]
            self._alike.append(self._made_like(table, self._schema, self._new_name(("x",), names)))
        self._write_to_all()

    def _like(self) -> None:
        source = self._table()
        name = self._new_name(_TABLES, [t.name for t in self.upstream.tables.values()])
        schema_id, prefix = source.schema_id, ""
        if self.has("second schema"):
            others = [i for i in self.upstream.schemas if i != source.schema_id]
            schema_id = (
                others[0] if others else create_schema(self.upstream, self._schema_name("other"))
            )
            prefix = quoted(self.upstream.schemas[schema_id]) + "."
        self._made_like(source, schema_id, name, prefix)

    def _made_like(self, source: Table, schema_id: int, name: str, prefix: str = "") -> Table:
        made = replace(
            source.shape(), id=self.upstream.new_id(), schema_id=schema_id, name=name, next_rowid=1
        )
        made.partitions = [replace(p, id=self.upstream.new_id()) for p in made.partitions]
        create_table(
            self.upstream, made, f"CREATE TABLE {prefix}{quoted(name)} LIKE {quoted(source.name)}"
        )
        return made

    def _truncate(self) -> None:
        table = self._table()
        job = self.upstream.job(
            11, f"TRUNCATE TABLE {quoted(table.name)}", schema_id=table.schema_id, table_id=table.id
        )
        del self.upstream.tables[table.id]
        table.id = self.upstream.new_id()
        table.partitions = [replace(p, id=self.upstream.new_id()) for p in table.partitions]
        table.rows, table.next_rowid = [], 1
        self.upstream.tables[table.id] = table
        job.finish(table)

    def _drop(self, table: Table | None = None) -> None:
        table = table or self._table()
        job = self.upstream.job(
            4, f"DROP TABLE {quoted(table.name)}", schema_id=table.schema_id, table_id=table.id
        )
        job.state()
        job.state()
        del self.upstream.tables[table.id]
        job.finish(table, schema_state=0)

    # --- partitions
    # ---------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        """A table of the same columns, filled, changes places with a partition: hidden row ids come
        twice from now on.
        """
        tables = [t for t in self.upstream.tables.values() if t.partitions]
        if not tables:
            return
        table, up = self.rng.choice(tables), self.upstream
        if any(index.unique for index in table.indexes if not index.primary):
            return
        other = replace(
            table.shape(),
            id=up.new_id(),
            partitions=[],
            by="",
            next_rowid=1,
            name=self._new_name(_TABLES, [t.name for t in up.tables.values()]),
        )
        create_table(up, other)
        place = self.rng.randrange(len(table.partitions))
        partition = table.partitions[place]
        low = (
            partition.values[0]
            if partition.values
            else table.partitions[place - 1].below
            if place
            else 0
        )
        at = table.column(table.by).id
        transaction = up.transaction()
        for _ in range(self.rng.randint(1, 3)):
            transaction.insert(
                other, self._values(other) | {table.by: self.rng.randint(low, partition.below - 1)}
            )
        transaction.commit()
        if any(not low <= row.values[at] < partition.below for row in other.rows):
            return
        early, old_version = up.tick(), up.version
        text = f"EXCHANGE PARTITION {quoted(partition.name)} WITH TABLE {quoted(other.name)}"
        job = up.job(
            42,
            f"ALTER TABLE {quoted(table.name)} {text}",
            schema_id=other.schema_id,
            table_id=other.id,
        )
        job.state()
        inside = [row for row in table.rows if row.partition == partition.id]
        outside = other.rows
        del up.tables[other.id]
        table.partitions[place] = replace(partition, id=other.id)
        other.id = partition.id
        up.tables[other.id] = other
        table.rows = [row for row in table.rows if row.partition != partition.id] + outside
        for row in outside:
            row.partition = table.partitions[place].id
        for row in inside:
            row.partition = 0
        other.rows = inside
        # Both go on counting from the larger one.
        table.next_rowid = other.next_rowid = max(table.next_rowid, other.next_rowid)
        job.finish(table, schema_state=0)
        if self.late:
            self._behind(table, low, partition.below, old_version, early)
            self._late_exchange(table, other, (low, partition), old_version)

    def _drop_partition(self) -> None:
        """DROP or TRUNCATE PARTITION while sessions with an older schema write."""
        tables = [t for t in self.upstream.tables.values() if len(t.partitions) > 1]
        if not tables:
            return
        table, up = self.rng.choice(tables), self.upstream
        place = self.rng.randrange(len(table.partitions) - 1)
        partition = table.partitions[place]
        drop = self.rng.random() < 0.5
        old_version, early = up.version, up.tick()
        job = self._alter(
            table,
            20 if drop else 23,
            f"{'DROP' if drop else 'TRUNCATE'} PARTITION {quoted(partition.name)}",
        )
        gone = [row for row in table.rows if row.partition == partition.id]
        if drop:
            version = job.state()
            dropped = table.info()["partition"]["definitions"][place]
            del table.partitions[place]
            info = table.info()
            info["partition"]["dropping_definitions"] = [dropped]
            up.steps[version] = table.schema_id, info
            job.state()
            # The partition isn't in the definition any more, the job isn't finished: its rows go to
            # the next one.
            low = table.partitions[place - 1].below if place else 0
            for _ in range(self.rng.randint(0, 1) if self.late and not partition.values else 0):
                # With metadata locks it may have begun before.
                transaction = up.transaction(version if self.rng.random() < 0.5 else old_version)
                transaction.insert(
                    table,
                    self._values(table) | {table.by: self.rng.randint(low, partition.below - 1)},
                )
                transaction.commit()
        else:
            table.partitions[place] = replace(partition, id=up.new_id())
        table.rows = [row for row in table.rows if row.partition != partition.id]
        job.finish(table, schema_state=0)
        for _ in range(self.rng.randint(0, 2) if self.late else 0):
            self._late(table, partition, place, gone, old_version)
        if self.late:
            self._behind(table, partition.below - 10, partition.below, old_version, early)

    def _reorganize(self) -> None:
        """REORGANIZE PARTITION while sessions write: into the old and the new partitions, and the
        binlog, twice.
        """
        tables = [t for t in self.upstream.tables.values() if t.partitions]
        if not tables:
            return
        table, up, rng = self.rng.choice(tables), self.upstream, self.rng
        place = rng.randrange(len(table.partitions))
        old = table.partitions[place]
        low = old.values[0] if old.values else table.partitions[place - 1].below if place else 0
        middle = rng.randint(low, old.below - 1)
        pieces = [(low, middle), (middle, old.below)] if low < middle else [(low, old.below)]
        new = [
            Partition(
                up.new_id(),
                f"r{up.new_id()}",
                below,
                tuple(range(first, below)) if old.values else (),
            )
            for first, below in pieces
        ]
        before, early = up.version, up.tick()
        into = ", ".join(
            f"PARTITION {quoted(p.name)} VALUES"
            + (f" IN ({', '.join(map(str, p.values))})" if p.values else f" LESS THAN ({p.below})")
            for p in new
        )
        job = self._alter(table, 64, f"REORGANIZE PARTITION {quoted(old.name)} INTO ({into})")
        for state in range(4):
            job.state()
            if state == 1:  # in the first state only removals are written twice
                table.second, table.twice = new, {old.id}
            if state == 3:
                table.partitions[place : place + 1] = new
                self._lie_anew(table, old.id)
                table.second, table.twice = [old], {p.id for p in new}
            for _ in range(rng.randint(0, 2) if state else 0):
                self._behind(
                    table,
                    low,
                    old.below,
                    rng.choice((before, up.version, up.version - 1)),
                    up.tick(),
                )
        job.finish(table, schema_state=0)
        if self.late:
            self._behind(table, low, old.below, up.version - 1, early)
        table.second, table.twice = [], set()

    def _lie_anew(self, table: Table, old_id: int) -> None:
        for row in table.rows:
            if row.partition == old_id:
                row.partition = table.place(table.named_values(row)) or 0

    def _behind(self, table: Table, low: int, below: int, version: int, start_ts: int) -> None:
        """A transaction that began before a DDL and touches the table behind it: it uses the new
        definition, and names the version that it began with, as metadata locks allow.
        """
        transaction = self.upstream.transaction(version, start_ts)
        for _ in range(self.rng.randint(0, 3)):
            near = [
                row
                for row in table.rows
                if low <= (row.values[table.column(table.by).id] or 0) < below
            ]
            step = self.rng.random()
            if not near or step < 0.5:
                transaction.insert(
                    table, self._values(table) | {table.by: self.rng.randint(low, below - 1)}
                )
            elif step < 0.75:
                transaction.delete(table, self.rng.choice(near))
            else:
                transaction.update(table, self.rng.choice(near), self._values(table))
        transaction.commit()

    def _late_exchange(
        self, table: Table, other: Table, where: tuple[int, Partition], version: int
    ) -> None:
        """A session with the definition before EXCHANGE PARTITION writes into what is the other
        table now.
        """
        low, partition = where
        transaction = self.upstream.transaction(version)
        if other.rows and self.rng.random() < 0.4:
            row = other.rows.pop(self.rng.randrange(len(other.rows)))
            transaction.log_delete(table, replace(row, partition=partition.id))
        else:
            values = self._values(table) | {table.by: self.rng.randint(low, partition.below - 1)}
            values = table.with_generated(values)
            if not other.fits(values, self.upstream.new_collation):
                return
            row = Row({c.id: values[c.name] for c in table.columns}, table.next_rowid)
            table.next_rowid = other.next_rowid = table.next_rowid + 1
            other.rows.append(row)
            transaction.log_insert(table, replace(row, partition=partition.id))
        transaction.commit()

    def _late(
        self, table: Table, partition: Partition, place: int, gone: list[Row], version: int
    ) -> None:
        """What a session with the old definition still writes into a partition that is gone has no
        effect.
        """
        transaction = self.upstream.transaction(version)
        if gone and self.rng.random() < 0.5:
            transaction.log_delete(table, gone.pop(self.rng.randrange(len(gone))))
        else:
            low = (
                partition.values[0]
                if partition.values
                else table.partitions[place - 1].below
                if place
                else 0
            )
            values = table.with_generated(
                self._values(table) | {table.by: self.rng.randint(low, partition.below - 1)}
            )
            if not table.fits(values, self.upstream.new_collation):
                return
            row = Row({c.id: values[c.name] for c in table.columns}, table.next_rowid, partition.id)
            table.next_rowid += 1
            transaction.log_insert(table, row)
        transaction.commit()


def _is_text(value: bytes) -> bool:
    return not set(value) & set(b"\0\x1a\n\t")


def _modulo(value: Any) -> Any:
    return None if value is None else abs(value) % 7 * (-1 if value < 0 else 1)


def _day_in_east(value: Any) -> Any:
    """The date in +08:00, where the sessions that wrote it were."""
    from datetime import datetime, timedelta

    if value is None or value.startswith("0000"):
        return None
    return str((datetime.fromisoformat(value) + timedelta(hours=8)).date())
