-- What Sluice's user needs downstream; see "Rights" in docs/operations.md.
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, CREATE TEMPORARY TABLES, CREATE VIEW, SHOW VIEW, PROCESS
  ON *.* TO 'sluice'@'%';
