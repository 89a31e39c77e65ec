"""The run database: a SQLite file with the records of a master. `store.py` says how it is written."""
