"""The cores: everything that mwpy decides, without I/O, clock, randomness or threads.

A core receives events (`handle(event, now)`), decides once per iteration (`decide(now)`), and returns everything that
must be done (`take_actions()`). The same events give the same actions, byte for byte. So the cores of master, agents
and overseers run together in one simulated world (`mwpy.testing.Cluster`).
"""
