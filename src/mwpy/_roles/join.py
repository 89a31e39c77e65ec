"""How a process connects to a master: an agent that joins, its session, and an inquirer that asks.

How an agent finds and connects to its master: through a resource file, through options, or through both.
"""

from __future__ import annotations

import os
import platform
import sys
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from os import PathLike
from pathlib import Path
from typing import Any, Self, cast

from msgspec import Struct
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._core.agent import child
from mwpy._core.session import KEPT_BYTES, UNCOUNTED, Session
from mwpy._roles.edges import AgentConnection, MasterSearch
from mwpy._system import clock
from mwpy._transport import wire
from mwpy._transport.link import AgentLink, CurvePair, ipv4_of, member_keys, server_keys
from mwpy._transport.stream import Broken, Connected
from mwpy._values import messages
from mwpy._values.algorithm import PYTHON
from mwpy._values.bounds import MAX_NAME, shortened
from mwpy._values.causes import Cause
from mwpy._values.errors import MasterUnreachable, MwpyError, ProtocolError, Refused, UsageError
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.messagepack import decode, encode
from mwpy._values.messages import explained
from mwpy._values.options import DEFAULT_CLIENT_TIMEOUT_S, JOB_VARIABLE, Options
from mwpy._values.plain import ASK_OWNER
from mwpy.resource_file import ResourceFile

# The first message of a process to its master.


def hello_of_this_process(member_id: str, generation: str, slaves: int) -> messages.Hello:
    """Return the first message of this process.

    Args:
        generation: the life of the master that the process wants to join; empty for any.
        slaves: how many slaves it will start.
    """
    job = shortened(os.environ.get(JOB_VARIABLE, ""), MAX_NAME)
    return messages.Hello(member_id, generation, platform.node(), os.getpid(), PYTHON, slaves, job)


CONNECT_S = 5.0
"""Seconds in which one candidate address must answer."""

LATE_S = 3.0
"""A missing or torn resource file is read again for this many seconds. A shared file system may show it late or in
part."""

READ_AGAIN_S = 0.1

LINGER_S = 1.0
"""Seconds for sending the last message of a visit."""


class MasterContact(Struct, frozen=True):
    """The addresses of the master, and what the master requires from an agent."""

    addresses: Sequence[str]
    server_public: str
    member: CurvePair
    member_id: str
    generation: str
    client_timeout: float | None
    """After this silence of the network, in seconds, the master is gone. None if only the master knows the value."""

    masters_timeout: float = DEFAULT_CLIENT_TIMEOUT_S
    """The master's own value, as far as it is known: heartbeats must be frequent enough for it."""

    def hello(self, slaves: int) -> messages.Hello:
        """Return the first message of this process, which will start this many slaves."""
        return hello_of_this_process(self.member_id, self.generation, slaves)


def find_master(options: Options) -> MasterContact | None:
    """Return the contact from the resource file and the options; None if the computation is finished."""
    content = None
    if options.resource_file is not None:
        try:
            content = _read(options.resource_file)
        except MwpyError as error:
            if options.master_host is None or options.master_port is None:
                raise
            print(f"mwpy: warning: {error}; using --mw-master-host and --mw-master-port", file=sys.stderr)
    if content is None:
        return _from_options(options)
    if content.computation_status == resource_file.FINISHED:
        print(f"mwpy: the computation is finished, says {options.resource_file}", file=sys.stderr)
        return None
    if resource_file.is_stale(content, clock.wall()):
        age = clock.wall() - content.timestamp
        print(
            f"mwpy: warning: {options.resource_file} was written {age:.0f} s ago, though its master writes it every "
            f"{content.update_interval:.0f} s: the file may be an old copy, or its master may be dead",
            file=sys.stderr,
        )
    return contact_in(content, options)


def contact_in(content: resource_file.ResourceFile, options: Options) -> MasterContact:
    """Return the contact from the content of a resource file; some options may override it."""
    addresses: Sequence[str] = content.master_addresses
    if options.after_file & {"master_host", "master_port"}:
        addresses = _overridden(options, addresses)
    keys = content.keys
    member = CurvePair(keys.member_public, keys.member_secret)
    member_id = options.member_id if "member_id" in options.after_file else content.member_id
    silence_s = options.silence_s(content.client_timeout)
    published = content.client_timeout
    return MasterContact(addresses, keys.server_public, member, member_id, content.generation, silence_s, published)


def _read(path: str) -> resource_file.ResourceFile:
    deadline = clock.monotonic() + LATE_S
    while True:
        try:
            return resource_file.read(path)
        except resource_file.NotWhole:
            if clock.monotonic() >= deadline:
                raise
        clock.sleep(READ_AGAIN_S)


def _overridden(options: Options, addresses: Sequence[str]) -> list[str]:
    changed: list[str] = []
    for address in addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        host = options.master_host if options.master_host and "master_host" in options.after_file else host
        port = str(options.master_port) if "master_port" in options.after_file else port
        changed.append(f"tcp://{host}:{port}")
    return list(dict.fromkeys(changed))


def _from_options(options: Options) -> MasterContact:
    if options.master_host is None or options.master_port is None:
        raise UsageError(
            "a slave needs to know its master: give --mw-resource-file FILE, or --mw-master-host, --mw-master-port "
            "and --mw-key-file"
        )
    key = read_key(options)
    if key is None:
        raise UsageError(
            "without a resource file a slave needs the master's key: give --mw-key-file FILE, or set MWPY_KEY"
        )
    address = f"tcp://{options.master_host}:{options.master_port}"
    keys = server_keys(key).public, member_keys(key)
    return MasterContact([address], *keys, options.member_id, "", options.client_timeout)


def read_key(options: Options) -> str | None:
    """Return the key from the key file or the environment; None if there is neither.

    Raises:
        UsageError: the file cannot be read or is empty.
    """
    if options.key_file is None:
        return options.key
    try:
        key = Path(options.key_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        remedy = ASK_OWNER if isinstance(error, PermissionError) else "copy it from the master"
        raise UsageError(f"cannot read the key file {options.key_file}: {error}; {remedy}") from error
    if not key:
        raise UsageError(f"the key file {options.key_file} is empty: copy it from the master")
    return key


def connect(contact: MasterContact) -> tuple[AgentLink, MasterContact]:
    """Connect to the master. ZeroMQ needs the client timeout before it connects, so an unknown one is asked for first.

    Returns:
        The connection, and the contact with the client timeout.

    Raises:
        Refused: the program at one of the addresses did not accept this agent.
        MasterUnreachable: no address answered.
    """
    if contact.client_timeout is None:
        link = try_all(contact)
        answer = visit(link, contact, "it asked for the client timeout, and connects again")
        link.close(LINGER_S)
        if isinstance(answer, messages.Refused):
            raise Refused(f"the master refused this agent: {answer.reason}")
        if isinstance(answer, messages.Welcome):
            contact = replace(contact, client_timeout=answer.client_timeout_s, masters_timeout=answer.client_timeout_s)
    return try_all(contact), contact


def visit(link: AgentLink, contact: MasterContact, why: str) -> messages.Message | str:
    """Send the Hello of an agent without slaves, wait for the answer, and send Goodbye.

    Args:
        why: the reason of the visit, for the Goodbye.

    Returns:
        The answer of the master, or why there is none.
    """
    link.send(wire.encode(contact.hello(0)))
    answer = _answer(link)
    if isinstance(answer, messages.Welcome):
        link.send(wire.encode(messages.Goodbye(why, Cause.CANCELLED)))
    return answer


def _answer(link: AgentLink) -> messages.Message | str:
    deadline = clock.monotonic() + CONNECT_S
    while (left := deadline - clock.monotonic()) > 0:
        fates, received, _ = link.poll(left)
        for frames in received:
            try:
                return wire.decode(frames, wire.FROM_MASTER)[0]
            except ProtocolError as error:
                return str(error)
        if fates:
            return "it ended the connection"
    return f"no answer within {CONNECT_S:.0f} s, though it accepted the keys"


def try_all(contact: MasterContact) -> AgentLink:
    """Try the candidate addresses one after the other.

    Raises:
        Refused: the program at one of the addresses did not accept this process.
        MasterUnreachable: no address answered.
    """
    tried: list[str] = []
    refused = False
    for address in contact.addresses:
        found = try_address(contact, address)
        if isinstance(found, AgentLink):
            return found
        refused = refused or found.fate == "refused"
        tried.append(f"{address}: {found.reason}")
    error = Refused if refused else MasterUnreachable
    raise error(
        f"no master at any of its addresses ({'; '.join(tried)}): is it running, and is its resource file fresh?"
    )


def try_address(contact: MasterContact, address: str) -> AgentLink | Broken:
    """Connect to one candidate address; return the connection, or why there is none.

    The reason is a reason of the link, or `unknown host`.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    found = ipv4_of(host)
    if found is None:
        return Broken("unknown host", "no such host is known here")
    link = link_to(contact, f"tcp://{found}:{port}")
    fate = _first_fate(link)
    if isinstance(fate, Connected):
        return link
    link.close(0.0)
    return fate


def link_to(contact: MasterContact, address: str) -> AgentLink:
    """Begin to connect to an address, `tcp://` with the number of a host."""
    timeout_s = contact.client_timeout or DEFAULT_CLIENT_TIMEOUT_S
    return AgentLink(address, contact.server_public, contact.member, timeout_s, contact.masters_timeout)


def _first_fate(link: AgentLink) -> Connected | Broken:
    deadline = clock.monotonic() + CONNECT_S
    while (left := deadline - clock.monotonic()) > 0:
        fates, _, _ = link.poll(left)
        if fates:
            return fates[0]
    return Broken("unreachable", f"no answer within {CONNECT_S:.0f} s")


# An agent's end of its session: it looks like one connection to the master, and has one after the other.
#
# While there is no connection, messages to the master are kept. `_core/agent/contact.py` decides when to look for the
# master, and `_core/session.py` what is sent again.


class SessionLink:
    """The connections to the master, as one.

    Args:
        link: the first connection.
        search: finds the master, and connects to it again; None if the agent has no session.
        brought: the results that the agent brings from a former generation of the master, as messages.
    """

    def __init__(
        self, link: AgentConnection, search: MasterSearch | None, brought: Sequence[Sequence[Buffer]] = ()
    ) -> None:
        self._link = link
        self._search = search
        self._brought = [*brought]
        self._brought_bytes = 0
        """About how many bytes of these came since the last session ended."""
        self.sids: dict[int, SlaveId] = {}
        """The ids that the master has given to slaves, by number, until it has handled everything of the slave."""
        self._died: deque[tuple[int, int]] = deque()
        """The slaves that have died: how many messages were sent until then, and the number."""
        self.asks = False
        """Whether an answer of the search is missing."""
        self.session: Session | None = None
        """The session; None before the master has accepted this agent, and if the agent has none."""
        self._has_session = False
        """Whether the session begins when the master accepts this agent."""
        self._has_ended = False
        self._watched: dict[int, tuple[bool, bool]] = {}
        """What is watched at each file descriptor: writable, readable."""

    # ---- the connection ------------------------------------------------------------------------------------

    def watch(self, fd: int, writable: bool = False, readable: bool = True) -> None:
        """Let `poll` wait for a file descriptor too."""
        was_watched = any(self._watched.get(fd, ()))
        self._watched[fd] = writable, readable
        if writable or readable:
            self._link.watch(fd, writable, readable)
        elif was_watched:
            self._link.unwatch(fd)

    def unwatch(self, fd: int) -> None:
        """Stop waiting for a file descriptor."""
        if any(self._watched.pop(fd)):
            self._link.unwatch(fd)

    def poll(self, timeout_s: float | None) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Wait for something to happen; see `AgentLink.poll`."""
        return self._link.poll(timeout_s)

    def end(self) -> None:
        """The connection has ended: keep what is sent from now on."""
        self._has_ended = True

    def ask(self) -> None:
        """Find out where the master may be; `answers` returns it."""
        assert self._search is not None, "there is no session"
        self.asks = True
        self._search.ask()

    def answers(self) -> list[child.AgentEvent]:
        """Return what was found out since `ask`."""
        answer = self._search.answer() if self.asks and self._search is not None else None
        self.asks = self.asks and answer is None
        return [] if answer is None else [answer]

    def connect(self, address: str) -> None:
        """Use another connection from now on, to this address."""
        assert self._search is not None, "there is no session"
        link = self._search.connect(address)
        for fd, (writable, readable) in self._watched.items():
            if writable or readable:
                link.watch(fd, writable, readable)
        self._link.close(0.0)
        self._link = link

    def close(self, linger_s: float) -> None:
        """Close the connection. Messages that were sent have `linger_s` seconds to leave."""
        self._link.close(linger_s)

    # ---- messages ------------------------------------------------------------------------------------------

    def greet(self, hello: messages.Hello) -> None:
        """Send the first message on a connection."""
        self._has_session = bool(hello.session)
        handled = None if self.session is None else self.session.handled
        self._link.send(wire.encode(replace(hello, handled=handled)))

    def post(self, succeeds: str | None, outgoing: Sequence[child.Outgoing]) -> None:
        """Send what the core has decided to send.

        Args:
            succeeds: the generation of the master with which the session has ended before; None if it goes on.
        """
        if succeeds is not None:
            self._brought += self.handovers(succeeds)
            self.session = None
            self.sids.clear()
            self._died.clear()
        for message in outgoing:
            frames = message.received or wire.encode(message.message, message.payload)
            if self.session is None and self._has_ended and isinstance(message.message, messages.Handover):
                self._brought.append(frames)
                self._brought_bytes += sum(map(len, frames))
            self.send(frames)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the master, now or when there is a connection again."""
        if self.session is not None:
            self.session.keep(frames)
            if wire.is_a(messages.SlaveDied, frames):
                died, _ = wire.parse(frames, wire.FROM_AGENT)
                assert isinstance(died, messages.SlaveDied)
                self._died.append((self.session.sent, died.slave))
        if not self._has_ended:
            self._link.send(frames)

    def takes(self, message: messages.Message, frames: Sequence[Buffer], now: float) -> bool:
        """Count a message of the master. Return whether it concerns only the session.

        Raises:
            ProtocolError: it contradicts the session; the master's fault.
        """
        session = self.session
        if isinstance(message, messages.Refused) and self._has_ended:  # the session does not go on at this master
            return False
        if type(message) not in UNCOUNTED:
            if session is not None:
                session.note_handled(frames, now)
                if isinstance(message, messages.SlaveNamed):
                    self.sids[message.slave] = message.sid
            return False
        if isinstance(message, messages.Welcome):
            self._answered(message)
        elif isinstance(message, messages.Handled) and session is not None:
            session.drop(message.count)
            self._forget_dead(message.count)
        return not isinstance(message, messages.Welcome)

    def _answered(self, welcome: messages.Welcome) -> None:
        """The master has accepted the agent, or goes on with its session: send again what it has not handled."""
        if self.session is None:
            self.session = Session() if self._has_session else None
            self._has_ended = False
            brought, self._brought, self._brought_bytes = self._brought, [], 0
            for frames in brought:
                self.send(frames)
            return
        if welcome.handled is None:
            raise ProtocolError("a second Welcome")
        self._forget_dead(welcome.handled)
        for frames in self.session.go_on(welcome.handled):
            self._link.send(frames)
        self._has_ended = False

    def _forget_dead(self, handled: int) -> None:
        """Forget the dead slaves whose last message the master has handled."""
        while self._died and self._died[0][0] <= handled:
            self.sids.pop(self._died.popleft()[1], None)

    def handovers(self, generation: str) -> list[Sequence[Buffer]]:
        """The results that the master has not handled, as messages for its next generation.

        Args:
            generation: the one that has ended.
        """
        found: list[Sequence[Buffer]] = []
        for frames in () if self.session is None else self.session.kept:
            message, payload = wire.parse(frames, wire.FROM_AGENT)
            if isinstance(message, messages.Handover):
                found.append(frames)
            elif isinstance(message, messages.Results):
                handover = messages.Handover(generation, self.sids[message.slave], message)
                found.append(wire.encode(handover, payload))
        return found

    @property
    def say_at(self) -> float:
        """When to call `say`; infinity if there is no need."""
        say_at = None if self.session is None or self._has_ended else self.session.say_at
        return inf if say_at is None else say_at

    def say(self) -> None:
        """Say how many messages of the master were handled."""
        if self.session is not None:
            self._link.send(wire.encode(self.session.said()))

    @property
    def is_full(self) -> bool:
        """Whether so much waits for a connection that slaves must wait, too."""
        kept_bytes = self._brought_bytes if self.session is None else self.session.kept_bytes
        return self._has_ended and kept_bytes > KEPT_BYTES


# Asks a running master what it does. The inquirer is a member without slaves; see `_core/master/silence.py`.


ANSWER_S = 60.0
"""Seconds in which a master answers. Other inquirers may be served first."""

Question = messages.AskStatus | messages.AskTask
Answer = messages.Status | messages.Explanation


class Inquirer:
    """A connection to a running master. Close it, or use it in a `with` block.

    Args:
        path: the resource file that the master writes.

    Raises:
        ResourceFileError: the file is missing, or is no resource file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = path
        self._content = resource_file.read(str(path))
        self._link: AgentLink | None = None
        self._answered = False
        """Whether the master has answered on this connection."""

    def status(self) -> dict[str, Any]:
        """Return what the master does; see `mwpy.status`."""
        answer = self._answer(lambda mine: messages.AskStatus(mine.member_id, mine.generation))
        if answer is not None:
            return {"state": "running", **cast(dict[str, Any], decode(encode(answer)))}
        return {
            "state": "finished",
            "member_id": self._content.member_id,
            "generation": self._content.generation,
        }

    def explanation(self, task: int) -> messages.Explanation:
        """Return why a task waits, or how it ended.

        Raises:
            UsageError: the computation is finished, so nobody knows.
        """
        answer = self._answer(lambda mine: messages.AskTask(mine.member_id, mine.generation, task))
        if not isinstance(answer, messages.Explanation):
            raise UsageError(
                f"the computation of {self._path} is finished, so no task waits; `mwpy logs AUDIT_FILE {task}` shows "
                f"whether slaves died while they ran the task"
            )
        return answer

    def _answer(self, question: Callable[[ResourceFile], Question]) -> Answer | None:
        """Ask, and return the answer; None if the computation is finished.

        A master that ended since the last question may be followed by the next one, or be finished, so the resource
        file is read again.

        Args:
            question: makes the question for the content of the resource file.
        """
        while self._content.computation_status != resource_file.FINISHED:
            answer = self._ask(question(self._content))
            if isinstance(answer, messages.Shutdown):
                if answer.finished:
                    return None
                raise MasterUnreachable(f"the master of {self._path} was interrupted, and ends now")
            if answer is not None:
                self._answered = True
                return answer
            if not self._answered:
                raise MasterUnreachable(
                    f"the master of {self._path} ended the connection. Did it end? Its audit file says why"
                )
            self.close()
            self._content = resource_file.read(str(self._path))
        return None

    def _ask(self, question: Question) -> Answer | messages.Shutdown | None:
        """Return the answer to a question; None if the master has ended the connection.

        Raises:
            Refused: the master refuses this process.
            MasterUnreachable: no master answers.
        """
        link = self._link = self._link or self._connect()
        link.send(wire.encode(question))
        deadline = clock.monotonic() + ANSWER_S
        while (left_s := deadline - clock.monotonic()) > 0:
            fates, received, _ = link.poll(left_s)
            for frames in received:
                answer = self._read(frames)
                if isinstance(answer, messages.Refused):
                    raise Refused(f"the master of {self._path} refused to answer: {answer.reason}")
                if isinstance(answer, messages.Status | messages.Explanation | messages.Shutdown):
                    return answer
            if fates:
                return None
        raise MasterUnreachable(
            f"the master of {self._path} accepted the connection, and gave no answer for {ANSWER_S:.0f} s: is its "
            f"process stopped, or its machine overloaded?"
        )

    def _connect(self) -> AgentLink:
        keys, mine = self._content.keys, self._content
        member = CurvePair(keys.member_public, keys.member_secret)
        own = mine.member_id, mine.generation, mine.client_timeout
        return try_all(MasterContact(mine.master_addresses, keys.server_public, member, *own))

    def _read(self, frames: Sequence[Buffer]) -> messages.Message:
        try:
            return wire.decode(frames, wire.TO_INQUIRER)[0]
        except ProtocolError as error:
            raise Refused(f"the master of {self._path} cannot be asked: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close(0.0)
            self._link = None
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def status(resource_file: str | PathLike[str]) -> dict[str, Any]:
    """Ask a running master what it does: what `mwpy status RESOURCE_FILE --json` prints.

    Args:
        resource_file: the file that the master writes (`--mw-resource-file`).

    Returns:
        A dictionary of texts, numbers, lists and dictionaries; the manual describes its keys. `"state"` is `"running"`,
        or `"finished"` if the file says that the computation is complete; then only its name is known.

    Raises:
        ResourceFileError: the file is missing or damaged; start the master, or copy the file again.
        MasterUnreachable: no master answers at its addresses. The master may have ended without finishing.
        Refused: the program there is another master, or has another version of mwpy.
    """
    with Inquirer(resource_file) as inquirer:
        return inquirer.status()


def explain(resource_file: str | PathLike[str], task_id: int) -> str:
    """Ask a running master why a task waits, or how it ended: what `mwpy explain RESOURCE_FILE TASK` prints.

    Args:
        resource_file: the file that the master writes (`--mw-resource-file`).
        task_id: the id of the task, which `mw.submit` has returned.

    Returns:
        Sentences, one a line. For a task that waits: the reasons, and for each agent why it is not sent the task.

    Raises:
        UsageError: the computation is finished, or the resource file is missing or damaged.
        MasterUnreachable: no master answers at its addresses.
        Refused: the program there is another master, or has another version of mwpy.
    """
    with Inquirer(resource_file) as inquirer:
        return explained(inquirer.explanation(task_id))
