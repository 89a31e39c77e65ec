"""A master that may have few open files: how many agents it takes, what it says, and that it still works."""

from __future__ import annotations

import sys

from tests.integration.apps.stage import APPS, Stage, until
from tests.integration.test_bad_member import hello_of, received
from tests.loopback import Agent, Loopback

from mwpy._transport import wire
from mwpy._transport.link import CurvePair
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy.resource_file import read

AGENTS = 60


def answered(agent: Agent) -> bool:
    return bool(received(agent, messages.Welcome) or received(agent, messages.Refused) or agent.broken)


def test_a_master_with_64_files_takes_as_many_agents_as_it_has_room_for(stage: Stage, ends: Loopback) -> None:
    """It says at the start how many. The others are refused with the reason, or turned away. An end makes room."""
    limited = ["sh", "-c", 'ulimit -n 64 && exec "$@"', "sh", sys.executable, str(APPS / "count.py")]
    files = ("--mw-resource-file", stage.resource, "--mw-audit-file", stage.audit)
    arguments = ("--mw-master", *files, "--mw-master-host", "127.0.0.1", "--after", stage.folder / "no file")
    master = stage.start("count.py", *arguments, program=limited)
    until(lambda: stage.resource.exists() or master.process.poll() is not None, "a resource file")
    assert "mwpy: there is room for " in master.err
    assert " agents, because this process may have only 64 open files; raise this limit (ulimit -n)" in master.err
    room = int(master.err.partition("there is room for ")[2].split()[0])
    assert 5 < room < 48
    content = read(str(stage.resource))
    keys = content.keys
    port = int(content.master_addresses[0].rpartition(":")[2])
    members = [
        ends.agent(port, server=keys.server_public, member=CurvePair(keys.member_public, keys.member_secret))
        for _ in range(AGENTS)
    ]
    for agent in members:
        agent.link.send(hello_of(stage))
    ends.until(lambda: all(answered(agent) for agent in members), "an answer for each")
    welcome = [agent for agent in members if received(agent, messages.Welcome)]
    refused = [message.reason for agent in members for message, _ in received(agent, messages.Refused)]
    assert 0 < len(welcome) <= room
    assert {reason.partition(":")[0] for reason in refused} <= {f"there is room for {room} agents only"}
    assert len(refused) < AGENTS - room or "mwpy: agents are refused: there is room for" in master.err
    assert "mwpy: connections are turned away, because they cannot be accepted: Too many open files" in master.err
    for agent in members:
        if agent is not welcome[0]:
            ends.close(agent)
    until(lambda: len(stage.audited("-> lost")) == len(stage.audited("-> connected")) - 1, "the loss of the others")

    def late_one() -> Agent:
        late = ends.agent(port, server=keys.server_public, member=CurvePair(keys.member_public, keys.member_secret))
        late.link.send(hello_of(stage))
        ends.until(lambda: answered(late), "an answer")
        return late

    late = late_one()
    while not received(late, messages.Welcome):  # it may be turned away while the ends of the others are noticed
        ends.close(late)
        late = late_one()
    assert not welcome[0].broken
    late.link.send(wire.encode(messages.Goodbye("enough", Cause.EVICTED)))
