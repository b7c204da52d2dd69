"""The past of the tables: kept, queried, searched, taken back."""
