"""The cores: everything that mwpy decides, without I/O, clock, randomness or threads.

A core is told what happened (`handle(event, now)`) and what the algorithm asks for (command methods),
is asked once an iteration to decide (`decide(now)`), and says what must be done (`take_actions()`).
The same events in give the same actions out, byte for byte, so that the cores of master, agents and
slaves run together in one simulated world (`mwpy.testing.Cluster`), thousands of them a minute.
"""
