"""The run database: a SQLite file with the records of a master. `writer.py` says how it is written."""
