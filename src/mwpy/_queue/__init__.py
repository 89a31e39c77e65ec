"""A queue for a group: several users, priorities, one set of hosts. A folder is the queue; nothing listens.

- `order` decides which entries run, and how many places each user has. It knows no files.
- `folder` is the folder: entries, requests of users, and what the keeper has decided.
- `worker` starts the masters of one user's entries and an overseer for them, and says how they ended.
- `keeper` decides again and again, writes the decision into the folder, and is the worker of its own user.
- `host` lets a machine serve the computations of a queue.
"""
