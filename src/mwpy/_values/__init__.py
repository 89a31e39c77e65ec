"""Values that all other parts share: tasks, messages, records, options, errors.

Modules in this package import nothing else from mwpy.
"""
