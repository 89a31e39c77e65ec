"""Programs as tasks: command lines with placeholders, their files, and sweeps of many settings.

Everything here is built on the public names of mwpy, as a user could have built it.
"""
