"""How a process connects to a master: an agent that joins, its session, and an inquirer that asks.

How an agent finds and connects to its master: through a resource file, through options, or through both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from mwpy import resource_file
from mwpy._core.agent.child import AddressesFound, ComputationOver
from mwpy._roles.sessions import hello_of_this_process
from mwpy._system import clock
from mwpy._system.process import Question
from mwpy._transport import wire
from mwpy._transport.link import AgentLink, CurvePair, ipv4_of, member_keys, server_keys
from mwpy._values import messages
from mwpy._values.causes import Cause
from mwpy._values.connections import Broken, Connected
from mwpy._values.errors import MasterUnreachable, MwpyError, ProtocolError, Refused, UsageError
from mwpy._values.messagepack import to_plain
from mwpy._values.options import DEFAULT_CLIENT_TIMEOUT_S, Options
from mwpy._values.phrases import ASK_OWNER, duration
from mwpy.resource_file import ResourceFile, read

# The first message of a process to its master.


CONNECT_S = 5.0
"""Seconds in which one candidate address must answer."""

LATE_S = 3.0
"""A missing or torn resource file is read again for this many seconds. A shared file system may show it late or in
part."""

READ_AGAIN_S = 0.1

LINGER_S = 1.0
"""Seconds for sending the last message of a visit."""


@frozen
class MasterContact:
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
            f"mwpy: warning: {options.resource_file} was written {duration(round(age))} ago, though its master writes "
            f"it every {duration(content.update_interval)}: the file may be an old copy, or its master may be dead",
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
            contact = evolve(contact, client_timeout=answer.client_timeout_s, masters_timeout=answer.client_timeout_s)
    return try_all(contact), contact


def visit(link: AgentLink, contact: MasterContact, why: str) -> messages.Message | str:
    """Send the Hello of an agent without slaves, wait for the answer, and send Goodbye.

    Args:
        why: the reason of the visit, for the Goodbye.

    Returns:
        The answer of the master, or why there is none.
    """
    link.send(wire.encode(contact.hello(0)))
    try:
        answer = _first_message(link, CONNECT_S, wire.FROM_MASTER)
    except ProtocolError as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {CONNECT_S:.0f} s, though it accepted the keys"
    if isinstance(answer, messages.Welcome):
        link.send(wire.encode(messages.Goodbye(why, Cause.CANCELLED)))
    return "it ended the connection" if answer is None else answer


def _first_message(link: AgentLink, patience_s: float, route: wire.Route) -> messages.Message | None:
    """Wait for a message other than a probe, and return it; None if the master has ended the connection.

    Raises:
        ProtocolError: a message cannot be read.
        TimeoutError: there was none.
    """
    deadline = clock.monotonic() + patience_s
    while (left_s := deadline - clock.monotonic()) > 0:
        fates, received, _ = link.poll(left_s)
        for frames in received:
            message, _ = wire.decode(frames, route)
            if not isinstance(message, messages.Probe):
                return message
        if fates:
            return None
    raise TimeoutError


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


# Asks a running master what it does. The inquirer is a member without slaves; see `_core/master/answers.py`.


ANSWER_S = 60.0
"""Seconds in which a master answers. Other inquirers may be served first."""


def ask(
    path: str | PathLike[str], task: int | None = None, drain: Sequence[str] = (), *, detailed: bool = False
) -> messages.Message | None:
    """Ask the master of a resource file what it does, or about a task, or to let agents leave. Return None if the
    computation is finished.

    Raises:
        ResourceFileError: the file is missing, or is no resource file.
        Refused: the master refuses this process.
        MasterUnreachable: no master answers.
    """
    mine = resource_file.read(str(path))
    if mine.computation_status == resource_file.FINISHED:
        return None
    try:
        answer = _answer_of(mine, path, messages.Ask(mine.member_id, mine.generation, task, [*drain], detailed))
    except MasterUnreachable:
        if resource_file.read(str(path)).computation_status == resource_file.FINISHED:
            return None
        raise
    if isinstance(answer, messages.Refused):
        raise Refused(f"the master of {path} refused to answer: {answer.reason}")
    if isinstance(answer, messages.Shutdown):
        if answer.finished:
            return None
        raise MasterUnreachable(f"the master of {path} was interrupted, and ends now")
    return answer


def _answer_of(content: ResourceFile, path: str | PathLike[str], question: messages.Ask) -> messages.Message:
    """Connect to the master and return its answer to a question."""
    link = try_all(contact_in(content, Options()))
    link.send(wire.encode(question))
    try:
        answer = _first_message(link, ANSWER_S, wire.TO_INQUIRER)
    except ProtocolError as error:
        raise Refused(f"the master of {path} cannot be asked: {error}") from error
    except TimeoutError:
        raise MasterUnreachable(
            f"the master of {path} accepted the connection, and gave no answer for {ANSWER_S:.0f} s: is its "
            f"process stopped, or its machine overloaded?"
        ) from None
    finally:
        link.close(0.0)
    if answer is None:
        raise MasterUnreachable(f"the master of {path} ended the connection. Did it end? Its audit file says why")
    return answer


def status(resource_file: str | PathLike[str], *, detailed: bool = False) -> dict[str, Any]:
    """Ask a running master what it does: what `mwpy status RESOURCE_FILE --json` prints.

    Args:
        resource_file: the file that the master writes (`--mw-resource-file`).
        detailed: whether to include what each slave does, and what failed and was logged lately.

    Returns:
        A dictionary. `"state"` is `"running"`, or `"finished"` if the file says that the computation is complete; then
        there are only `member_id` and `generation` beside it. The other keys are `uptime_s`, `tasks`, `rate` (tasks
        that ended in a second, over the last minute), `slaves_wanted`, `slaves_connected`, `slaves_needed`,
        `algorithms`, `hosts`, `failures`, `lost`, `last_failure`, `last_failure_age_s`, `notices`, `waits` (why no
        tasks are sent at all) and `reused` (tasks that were answered from the run database). The largest 50 algorithms
        and 200 hosts have a row; the last row counts the others. `detailed` adds `stuck` (why nothing progresses),
        `slaves` (what each of the first 2000 does), `slaves_left_out`, `rows` (what each algorithm did at each host),
        `examples` (the newest failure of each kind, with its traceback), `maps` and `log`.

    Raises:
        ResourceFileError: the file is missing or damaged; start the master, or copy the file again.
        MasterUnreachable: no master answers at its addresses. The master may have ended without finishing.
        Refused: the program there is another master, or has another version of mwpy.
    """
    answer = ask(resource_file, detailed=detailed)
    if answer is not None:
        return messages.plain_status(answer)
    content = read(str(resource_file))
    return {"state": "finished", "member_id": content.member_id, "generation": content.generation}


def drain(resource_file: str | PathLike[str], *names: str) -> dict[str, Any]:
    """Let agents leave when they have finished what they run: what `mwpy drain RESOURCE_FILE NAME ...` does.

    They get no more tasks. Tasks that have not started go back to the master, and run elsewhere. No task is killed.

    Args:
        resource_file: the file that the master writes (`--mw-resource-file`).
        names: agents (`AGENT-3`), their jobs, or their hosts, which may be patterns (`node1*`).

    Returns:
        `"agents"`: the agents that leave. `"running"`: how many tasks they had. `"unknown"`: the names that are those
        of no agent which can leave, with the reason.

    Raises:
        UsageError: the computation is finished, no name is given, or the resource file is missing or damaged.
        MasterUnreachable: no master answers at its addresses.
        Refused: the program there is another master, or has another version of mwpy.
    """
    if not names:
        raise UsageError("mwpy.drain() needs the names of agents, of their jobs or of their hosts")
    answer = ask(resource_file, drain=names)
    if not isinstance(answer, messages.Drained):
        raise UsageError(f"the computation of {resource_file} is finished, so its agents leave anyway")
    found: dict[str, Any] = to_plain(answer)
    return found


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
    return str(explanation_of(resource_file, task_id))


def explanation_of(path: str | PathLike[str], task: int) -> messages.Explanation:
    """Ask a running master about a task; see `explain`."""
    answer = ask(path, task)
    if not isinstance(answer, messages.Explanation):
        raise UsageError(
            f"the computation of {path} is finished, so no task waits; `mwpy logs AUDIT_FILE {task}` shows whether "
            f"slaves died while they ran the task"
        )
    return answer


# How an agent finds its master again: it reads the resource file and looks up addresses in a thread of its own.
#
# While the network fails, a file system may hang, and a name server may not answer. But the agent must serve its
# slaves.
#
# The resource file may be of another generation of the master than the agent: a later one, or a former one if a network
# file system shows an old file. So the agent tries the addresses in the file, and the address at which its master was.
# A master that answers says which generation it is of.


class Search:
    """Finds the master of an agent.

    Args:
        options: where to look.
        contact: where the master was.
        address: its address that answered then.
    """

    def __init__(self, options: Options, contact: MasterContact, address: str) -> None:
        self._options = options
        self._contact = contact
        """How the last connection was made."""
        self._address = address
        self._places: Places = {}
        """What was found out last."""
        self._question = Question(self._look, "mwpy-search")

    def answer(self) -> AddressesFound | ComputationOver | None:
        """Find out where the master may be now; return None if this needs more time."""
        try:
            found = self._question.ask(0.0)
        except TimeoutError:
            return None
        if isinstance(found, ComputationOver):
            return found
        self._places = found
        return AddressesFound([*found])

    def _look(self) -> Places | ComputationOver:
        before, published = self._contact, self._published()
        if published is None:
            return _places(before, self._address)
        if published.computation_status == resource_file.FINISHED:
            return ComputationOver("the resource file says that the computation is finished", finished=True)
        contact = contact_in(published, self._options)
        if contact.generation == before.generation:
            return _places(contact, self._address)
        if contact.member_id != before.member_id:
            return ComputationOver("the resource file is of another computation", finished=False)
        places, former = _places(contact), _places(before, self._address)
        return places | {name: former[name] for name in former if name not in places}

    def _published(self) -> resource_file.ResourceFile | None:
        """The content of the resource file; None if there is none."""
        if self._options.resource_file is None:
            return None
        try:
            return resource_file.read(self._options.resource_file)
        except MwpyError:  # it may be torn, or its file system may be away
            return None

    def connect(self, address: str) -> AgentLink:
        """Begin to connect to one of these addresses."""
        self._contact, self._address = self._places[address]
        return link_to(self._contact, self._address)


def _places(contact: MasterContact, first: str | None = None) -> Places:
    """The places of a contact.

    Args:
        first: an address that has answered.
    """
    found = [] if first is None else [first]
    for address in contact.addresses:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        number = ipv4_of(host)
        if number is not None:
            found.append(f"tcp://{number}:{port}")
    return {f"{address} {contact.server_public}": (contact, address) for address in found}


Places = dict[str, tuple[MasterContact, str]]
"""Where the master may be, by name: an address, and how to connect to it. Two generations may have the same address and
other keys."""
