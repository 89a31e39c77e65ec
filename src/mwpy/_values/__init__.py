"""Values that all other parts share: tasks, messages, records, options, errors.

They import nothing of mwpy but each other.
"""
