"""Invent a recording of a shop that never stands still.

It has rows of all types, and every few seconds a DDL of another kind.

It is the history that `tests.judge` invents to judge applying by: columns come and go, keys come
and go, tables are made, renamed, exchange their names, are truncated and dropped, partitions are
dropped and truncated. Left out is what the stand-in TiDB can't read back: types that change with
their values, partitions that are exchanged, values that aren't strict, and rows that late sessions
write into partitions that are gone; what settings would have to name; and what makes a recording
large.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.judge import kinds, recording
from tests.judge.features import FEATURES
from tests.judge.invent import History
from tests.judge.invented_tidb import Upstream, create_table
from tests.judge.tables import Column, Index, Table

_UNREADABLE = {
    "exchange",
    "change name and type",
    "modify type",
    "several at once",
    "old collations",
    "zeros",
}
_OTHERS = {"routes", "merged", "large values", "alike tables"}
_MOST_ROWS = 3_000
"""Limit of a table's rows: the model looks at all of them with each change."""


class Shop(History):
    """Mostly transactions, and DDL by the clock."""

    late = False

    def trade(self, transactions: int, each: int) -> Upstream:
        """Run `transactions` transactions, and a DDL before every `each` of them."""
        for _ in range(3):
            self._create()
        for number in range(transactions):
            if number % each == 0:
                self._ddl()
            while not self.upstream.tables:
                self._create()
            self._write()
            self._empty_the_largest()
        self._steady()
        return self.upstream

    def _steady(self) -> None:
        """Create a table with a number for its key.

        In one of these a value is changed in the end.
        """
        columns = [
            Column(1, "id", kinds.INT, nullable=False),
            Column(2, "v", kinds.INT, nullable=True),
        ]
        steady = Table(
            self.upstream.new_id(),
            self._schema,
            "steady",
            columns,
            [Index(1, "PRIMARY", ("id",), unique=True, primary=True)],
        )
        steady.max_column, steady.max_index = 2, 1
        create_table(self.upstream, steady)
        transaction = self.upstream.transaction()
        for number in range(100):
            transaction.insert(steady, {"id": number, "v": number})
        transaction.commit()

    def _empty_the_largest(self) -> None:
        largest = max(self.upstream.tables.values(), key=lambda table: len(table.rows))
        if len(largest.rows) > _MOST_ROWS:
            transaction = self.upstream.transaction()
            for row in largest.rows[::2]:
                transaction.delete(largest, row)
            transaction.commit()


def invent(folder: Path, transactions: int, each: int, seed: int = 1) -> None:
    """Write the recording into `folder`, with a label at its beginning and one at its end."""
    shop = Shop(
        random.Random(seed), [each for each in FEATURES if each not in _UNREADABLE | _OTHERS]
    )
    began = shop.upstream.committed
    upstream = shop.trade(transactions, each)
    recording.write(upstream, folder)
    labels = [
        {"label": name, "ts": ts, "tables": {}}
        for name, ts in (("begin", began), ("end", upstream.committed))
    ]
    (folder / "snapshots.json").write_text(json.dumps(labels))
