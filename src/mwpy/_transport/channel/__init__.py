"""The channel between an agent and one of its slaves; it is made before the slave starts.

*The stream* is a socket pair. It carries messages both ways, in the same frames as on the network. The agent's end
never blocks: what the slave does not read waits in the agent. The slave's end does block, because a slave that waits
has nothing else to do.

*Starts and recalls* use shared memory. Before a slave starts a task, it writes the task's position (counted from 1 in
the order in which tasks are passed on to it), and then reads the number of recalls. To take tasks back, the agent
raises the number of recalls, waits a moment, and reads the position. All tasks behind that position were not started
and can be given away, even if the slave is deep in native code and answers nothing. When the slave comes to its next
task, it finds the number raised, and starts nothing until it has received the message that names the recalled tasks.

This is Dekker's mutual exclusion without a memory fence on the slave's side, which must be fast. The slave's write may
become visible after its read, but only some nanoseconds later, when it leaves the processor's store buffer. The agent
waits a millisecond (A. Morrison and Y. Afek, "Temporally Bounding TSO for Fence-Free Asymmetric Synchronization",
ASPLOS 2015).

*Feeding*: the agent measures how long a slave is silent. The silence begins when the agent sends tasks to a slave that
has none, and it begins again when the slave sends results. The slave can read the time of the feeding, so it knows how
long it may keep a result.

*The journal* holds finished results that were not sent yet; see `journal.py`.

A task may fork. The child process inherits the channel. It could start tasks, answer for its parent, and keep the
stream open after its parent's death, so a forked child closes the channel at once (`SlaveEnd.forked`). A child that
native code forked does not close it. Therefore an agent relies on the exit of the slave, and not on the end of the
stream.
"""

from mwpy._transport.channel.ends import SETTLE_S, AgentEnd, SlaveEnd, SlaveFds, open_channel

__all__ = ["SETTLE_S", "AgentEnd", "SlaveEnd", "SlaveFds", "open_channel"]
