"""Turn landed windows into write plans, without knowing any server.

Filters and routes (`rules`), the schema at each place and the DDL barriers (`planning`), net
effects, conflict groups and encoders (`write_plans`), SQL and LOAD DATA text (`formats`). Main
types: `ReplicationRules` (what goes downstream, under which names), `ChangeSet` (the changes
between two DDL barriers), `Step` (one thing for a sink to do).
May import: relay, tidb, errors; no other room.
"""
