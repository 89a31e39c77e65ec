"""Many agents of one slave each in one process. They speak the protocol, and answer each task at once with its result.

    python agents.py RESOURCE_FILE COUNT

It prints the seconds until the master has admitted all of them. When its standard input ends, it prints the fewest and
the most tasks that an agent had, and ends.
"""

from __future__ import annotations

import os
import select
import sys
import time

import zmq

from mwpy import resource_file
from mwpy._system import process
from mwpy._transport import wire
from mwpy._transport.link import configure, receive, send, send_heartbeats
from mwpy._transport.stream import heartbeat_interval
from mwpy._values import groups, messagepack, messages

AT_ONCE = 100
"""How many agents connect at the same time: as many connections can wait to be accepted."""

SECONDS = 1e-5
"""How long a task takes, as the agents say."""

NONE = messagepack.encode(None)


class Agent:
    """The end of one connection."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], content: resource_file.ResourceFile) -> None:
        self.socket = context.socket(zmq.DEALER)
        configure(self.socket)
        send_heartbeats(self.socket, heartbeat_interval(content.client_timeout), content.client_timeout)
        self.socket.curve_serverkey = content.keys.server_public.encode()
        self.socket.curve_publickey = content.keys.member_public.encode()
        self.socket.curve_secretkey = content.keys.member_secret.encode()
        self.socket.connect(content.master_addresses[0])
        self.send(messages.Hello(content.member_id, content.generation, "here", os.getpid(), "3.11", 1))
        self.ready = False
        self.tasks = 0

    def send(self, message: messages.Message, *payload: bytes) -> None:
        send(self.socket, wire.encode(message, payload))

    def turn(self) -> None:
        """Read and answer what has arrived."""
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            message, _ = wire.decode(receive(self.socket)[0], wire.FROM_MASTER)
            match message:
                case messages.Welcome():
                    self.send(messages.SlaveReady(1))
                    self.ready = True
                case messages.Tasks(tasks=tasks, counts=counts, attempts=attempts):
                    count = sum(counts)
                    self.tasks += count
                    results = messages.Results(1, tasks, counts, attempts, [SECONDS] * count, [])
                    self.send(results, groups.payload(count, [NONE] * count))
                case messages.Revoke():
                    self.send(messages.Revoked(1, [], [], []))


def main(path: str, count: int) -> None:
    process.raise_limit()
    content = resource_file.read(path)
    context = zmq.Context()
    context.max_sockets = 2 * count
    agents: dict[int, Agent] = {}
    poll = select.epoll()
    began = time.perf_counter()
    while (ready := sum(agent.ready for agent in agents.values())) < count:
        for _ in range(min(count - len(agents), ready + AT_ONCE - len(agents))):
            agent = Agent(context, content)
            agents[agent.socket.fd] = agent
            poll.register(agent.socket.fd, select.EPOLLIN)
            agent.turn()  # the descriptor tells only of what arrives after this
        for fd, _ in poll.poll():
            agents[fd].turn()
    print(time.perf_counter() - began, flush=True)
    end = sys.stdin.fileno()
    poll.register(end, select.EPOLLIN)
    while end not in (readable := [fd for fd, _ in poll.poll()]):
        for fd in readable:
            agents[fd].turn()
    tasks = [agent.tasks for agent in agents.values()]
    print(min(tasks), max(tasks), flush=True)
    context.destroy(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
