"""The connection between master and agents: the only place that uses ZeroMQ.

The master has a ROUTER socket, each agent a DEALER socket, and CURVE is always on. The design relies on these facts of
libzmq 4.3.5; they were measured, and `test_link_facts.py` tests them:

- A peer that dies leaves no message on a ROUTER. But the ROUTER's monitor reports DISCONNECTED with the descriptor of
  the connection, and a send to that peer soon raises EHOSTUNREACH (ROUTER_MANDATORY): usually the first or the second
  send after the ROUTER has looked for messages. libzmq reports DISCONNECTED before it passes on the last messages. So
  the peer of that descriptor is sent probes until one fails, and is reported as gone only when nothing is left to read.
- ZMTP heartbeats are sent and answered by libzmq's own thread, even while another thread holds the interpreter lock.
  To send or to expect one, libzmq searches a list of all timers. With 4,000 connections, this was nearly all that an
  idle master did. So only agents send heartbeats: they notice a master that is frozen or has vanished. The master asks
  the kernel when the last byte of each connection arrived (TCP_INFO), and ends a connection that is silent.
- Without a routing id, a ROUTER gives each connection a new name, so no peer is mistaken for another. With
  RECONNECT_IVL -1 a broken connection stays broken. So a reconnect is always a new connection, and nothing that was
  queued for the old connection is delivered on the new one.
- libzmq compares the announced length of each frame with MAXMSGSIZE before it makes room for the frame, also during the
  handshake, and stores the frame before CURVE looks at it. So this option limits what a stranger can make the master
  store, and it is small. `pieces.py` says how large messages travel.
- A client with a wrong key of its own sees HANDSHAKE_FAILED_AUTH. A client that expects another server's key sees
  HANDSHAKE_FAILED_NO_DETAIL. If nobody listens, it sees CLOSED.
- The server's monitor reports ACCEPTED and DISCONNECTED with the file descriptor of the connection, and each message
  has the descriptor too (SRCFD). So a connection that was accepted and ended without a message belonged to a stranger.
  The thread that reads the messages also answers the requests for admission (ZAP), so it has seen ACCEPTED before the
  first message.
- To wait for a socket, libzmq looks at its events before and after, with two system calls each. The descriptor of a
  socket (FD) becomes readable when something has happened to the socket since it was found empty. This is enough for a
  socket that is always read until it is empty: the monitor of the agent, and the socket of the requests for admission.
- When accepting fails for lack of a file descriptor, libzmq's thread tries again at once, and the monitor reports
  ACCEPT_FAILED each time. To unbind would also end all connections. But the monitor reports the listening socket
  (LISTENING), so the master can accept and close the connections that wait.
"""

from mwpy._transport.link.agent_link import AgentLink
from mwpy._transport.link.keys import CurvePair, member_keys, new_key, server_keys
from mwpy._transport.link.master_link import MasterLink
from mwpy._transport.link.sockets import library_versions

__all__ = [
    "AgentLink",
    "CurvePair",
    "MasterLink",
    "library_versions",
    "member_keys",
    "new_key",
    "server_keys",
]
