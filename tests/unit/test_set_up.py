"""The set-up of agents: what is declared, when it runs, what follows when it fails, and what it gives to slaves."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.driven_agent import HELLO, WELCOME, heard, to_master
from tests.unit.test_answers import Asked
from tests.unit.test_former import join, succeed

from mwpy._core.agent.child import AgentActions, AgentSettings, Measured, SlaveExited, SlaveHeard, Terminated
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.starts import FAILED_STARTS_ALLOWED
from mwpy._core.master.state import Waiting
from mwpy._roles.definitions import setup_of
from mwpy._roles.set_up import FOLDER, agent_folder, attempt
from mwpy._transport import wire
from mwpy._transport.codec import Codec
from mwpy._values import algorithm, messages
from mwpy._values.algorithm import Registry, agent_setup
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode, UsageError
from mwpy._values.last_words import NO_WORDS, LastWords

BUILD = messages.SetUp(messages.AlgorithmDefinition(0, "build", "", "", "3.11"), b"code")
OTHER = messages.SetUp(messages.AlgorithmDefinition(0, "other", "", "", "3.11"), b"other code")


# ---- the agent -----------------------------------------------------------------------------------------------------


class Agent:
    """An agent whose master has accepted it, and wants a set-up."""

    def __init__(self, set_up: messages.SetUp = BUILD, slaves: int = 2) -> None:
        self.core = AgentCore(AgentSettings(replace(HELLO, slaves=slaves, session="s", returns_s=100.0)))
        self.core.handle(heard(replace(WELCOME, set_up=set_up, generation="g")), 0.0)

    def say(self, slave: int, message: messages.Message) -> None:
        self.core.handle(SlaveHeard(slave, message, wire.encode(message)), 0.0)

    def end(self, slave: int, code: int = 0, words: LastWords = NO_WORDS, **failed: Any) -> None:
        """The set-up says how it ended, and its process ends."""
        self.say(slave, messages.SetUpEnded(slave, 2.0, **failed))
        self.core.handle(SlaveExited(slave, f"exit code {code}", words, 0, code=code), 0.0)

    def act(self, now: float = 0.0) -> AgentActions:
        self.core.decide(now)
        return self.core.take_actions()


def died(actions: AgentActions) -> list[tuple[Cause, str]]:
    """The deaths that are reported to the master."""
    return [(each.cause, each.reason) for each in to_master(actions) if isinstance(each, messages.SlaveDied)]


def test_slaves_start_when_the_set_up_has_ended_with_what_it_gives_them() -> None:
    agent = Agent()
    actions = agent.act()
    assert actions.start == [1]
    [(number, sent)] = actions.to_slaves
    assert number == 1
    assert isinstance(sent.message, messages.Welcome)
    assert sent.message.set_up == BUILD
    agent.end(1, environment={"TOOL": "/tmp/tool"})
    actions = agent.act()
    assert (actions.environment, actions.start) == ({"TOOL": "/tmp/tool"}, [2, 3])
    assert to_master(actions) == [messages.SetUpEnded(1, 2.0)]


def test_a_set_up_that_the_network_may_have_failed_runs_again_and_then_the_agent_leaves() -> None:
    agent = Agent()
    for number in range(1, FAILED_STARTS_ALLOWED + 1):
        assert agent.act().start == [number]
        agent.end(number, failure="no network", is_passing=True)
    actions = agent.act()
    assert [reason for _, reason in died(actions)] == ["the set-up build failed: no network"]
    assert actions.exit is ExitCode.CANNOT_START


def test_an_agent_whose_build_is_faulty_leaves_at_once() -> None:
    agent = Agent()
    agent.act()
    words = LastWords("", "make: *** No rule")
    agent.end(1, words=words, failure="exit status 2")
    actions = agent.act()
    [message] = [each for each in to_master(actions) if isinstance(each, messages.SlaveDied)]
    assert (message.cause, message.reason) == (Cause.SET_UP, "the set-up build failed: exit status 2")
    assert message.words == words
    assert actions.exit is ExitCode.CANNOT_START


def test_a_set_up_that_is_killed_from_outside_is_repeated() -> None:
    """Somebody may have killed it by mistake, as a slave. It is no reason to leave."""
    agent = Agent()
    agent.act()
    agent.core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 0, code=-9), 0.0)
    assert agent.act(1.0).start == [2]
    assert agent.core.children[2].sets_up == BUILD


def test_a_set_up_that_takes_too_long_is_killed() -> None:
    agent = Agent(replace(BUILD, seconds_max=5.0))
    agent.act()
    assert agent.act(4.9).abort == []
    assert agent.act(5.1).abort == [1]
    assert agent.act(30.0).kill == [1]
    agent.core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 0, code=-9), 30.0)
    [(cause, reason)] = died(agent.act(30.0))
    assert cause is Cause.SET_UP
    assert "ran for more than 5 s, its seconds_max" in reason


def test_a_set_up_without_a_limit_may_take_longer_than_the_start_of_a_slave() -> None:
    agent = Agent()
    agent.act()
    assert agent.act(1e6).abort == []


def test_a_set_up_that_uses_too_much_memory_is_killed() -> None:
    agent = Agent(replace(BUILD, memory_max=1000))
    assert agent.act().measure == [(1, 1000)]
    agent.core.handle(Measured(1, 0, 999, 0), 10.0)
    assert agent.act(10.0).kill == []
    agent.core.handle(Measured(1, 0, 1001, 0), 11.0)
    assert agent.act(11.0).kill == [1]
    agent.core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 0, code=-9), 12.0)
    [(cause, reason)] = died(agent.act(12.0))
    assert cause is Cause.SET_UP
    assert "its memory_max" in reason


@pytest.mark.parametrize(("limit", "gives_up"), [(1000, True), (None, False)])
def test_a_set_up_that_the_kernel_kills_for_lack_of_memory_is_faulty_if_it_has_a_limit(
    limit: int | None, gives_up: bool
) -> None:
    """If not, others on the machine may have taken its memory, and it is tried again."""
    agent = Agent(replace(BUILD, memory_max=limit))
    agent.act()
    agent.core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 0, code=-9, out_of_memory=True), 1.0)
    actions = agent.act(1.0)
    [(cause, reason)] = died(actions)
    assert (cause is Cause.SET_UP) == gives_up == ("its memory_max is 1000 bytes" in reason)
    assert (actions.exit is ExitCode.CANNOT_START) == gives_up


def test_an_agent_that_leaves_kills_its_set_up() -> None:
    agent = Agent()
    agent.act()
    agent.core.handle(Terminated("SIGTERM"), 1.0)
    assert agent.act(1.0).kill == [1]
    agent.core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 0, code=-9), 1.0)
    assert agent.act(1.0).exit is not None


@pytest.fixture
def ready() -> Agent:
    """An agent that was set up, whose slave 2 is ready."""
    agent = Agent(slaves=1)
    agent.act()
    agent.end(1)
    agent.act()
    agent.say(2, messages.SlaveReady(2))
    agent.act()
    return agent


def test_the_next_generation_of_the_master_does_not_set_up_again(ready: Agent) -> None:
    succeed(ready.core)
    assert messages.SetUpEnded(2) in join(ready.core, replace(WELCOME, generation="g2", set_up=BUILD))
    ready.say(2, messages.NextGeneration(2, ""))
    actions = ready.act(9.0)
    assert actions.start == []
    assert messages.SlaveReady(2) in to_master(actions)


def test_another_set_up_of_the_next_generation_runs_before_slaves_that_are_replaced(ready: Agent) -> None:
    succeed(ready.core)
    ready.core.handle(heard(replace(WELCOME, generation="g2", set_up=OTHER)), 9.0)
    actions = ready.act(9.0)
    [started] = actions.start
    assert ready.core.children[started].sets_up == OTHER
    ready.say(2, messages.NextGeneration(2, ""))
    assert messages.SlaveReady(2) not in to_master(ready.act(9.0))
    ready.core.handle(SlaveExited(2, "exit code 0", NO_WORDS, 0, code=0), 9.0)
    assert ready.act(9.0).start == []
    ready.end(started)
    [started] = ready.act(9.0).start
    assert ready.core.children[started].sets_up is None


# ---- the master ----------------------------------------------------------------------------------------------------


class Master(Asked):
    """A master whose agents are set up."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(set_up=BUILD, **settings)

    def join(self, peer: bytes = b"a", host: str = "host") -> None:  # type: ignore[override]
        """An agent connects, and sets itself up."""
        self.receive(messages.Hello("m", "g", host, 1, "3.11", 1), peer=peer)

    @property
    def notices(self) -> list[str]:
        return [text for _, text in self.core.state.notices.newest]

    def fail(self, peer: bytes = b"a") -> None:
        words = LastWords("", "make: *** No rule")
        reason = "the set-up build failed: exit status 2"
        self.receive(messages.SlaveDied(1, 0, Cause.SET_UP, reason, words), peer=peer)


def test_a_host_whose_build_is_faulty_gets_no_more_work_and_the_log_is_shown() -> None:
    master = Master()
    master.join()
    master.join(b"b", "other host")
    master.fail()
    assert [*master.core.state.members.excluded] == ["host"]
    [text] = [each for each in master.notices if "was not set up" in each]
    assert "on host" in text
    assert "make: *** No rule" in text
    assert not master.core.losses.cannot_go_on


def test_an_agent_whose_set_up_was_done_or_never_wanted_excludes_no_host() -> None:
    """It lies, or is in error. Other agents of its host would suffer."""
    master = Master()
    master.join()
    master.receive(messages.SetUpEnded(1, 7.0))
    master.fail()
    assert not master.core.state.members.excluded
    plain = Asked()
    plain.connect()
    plain.receive(messages.SlaveDied(2, 0, Cause.SET_UP, "it lies", NO_WORDS), peer=b"a")
    assert not plain.core.state.members.excluded


@pytest.mark.parametrize("settings", [{"set_up_stops": True}, {"only_here": True}])
def test_the_run_ends_if_this_is_wanted_or_there_is_no_other_host(settings: dict[str, bool]) -> None:
    master = Master(**settings)
    master.join()
    master.submit(2)
    master.fail()
    assert "exit status 2 (on host" in master.core.losses.cannot_go_on
    assert not master.core.state.members.excluded


def test_what_is_set_up_is_in_the_status_and_in_what_a_task_waits_for() -> None:
    master = Master()
    master.submit()
    master.join()
    master.pass_time(7.0)
    assert master.status.hosts["host"] == messages.HostStatus(agents=1, setting_up=1)
    assert any("its set-up runs, for 9 s" in reason for reason in master.explain(1).reasons)
    master.receive(messages.SetUpEnded(1, 7.0))
    assert master.status.hosts["host"] == messages.HostStatus(agents=1, starting=1)


def test_somebody_who_waits_for_tasks_learns_what_runs_meanwhile() -> None:
    master = Master()
    master.submit()
    master.join()
    master.core.waiting = Waiting.FOREVER
    for _ in range(20):
        master.pass_time(10.0)
    assert any("The set-up build runs on 1 agent, for" in text for text in master.notices)


# ---- what is declared ----------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setattr(algorithm, "REGISTRY", registry)
    return registry


def build() -> None:
    """The set-up of a script."""


def test_the_function_stays_a_function(registry: Registry) -> None:
    assert agent_setup(build) is build
    assert agent_setup(seconds_max=5)(build) is build
    [setup] = registry.setups
    assert (setup.name, setup.policy.seconds_max, setup.stops) == ("build", 5, False)


def test_a_command_is_named_by_its_beginning(registry: Registry) -> None:
    assert agent_setup("make  -C\n/shared", on_failure="stop") is None
    setup = registry.setup()
    assert setup is not None
    assert (setup.name, setup.stops) == ("make -C /shared", True)


def test_two_set_ups_are_refused(registry: Registry) -> None:
    agent_setup(build)
    agent_setup("make")
    with pytest.raises(UsageError, match="more than one set-up of agents"):
        registry.setup()


def test_the_set_up_of_the_script_counts_more_than_those_of_modules(registry: Registry) -> None:
    agent_setup(build)

    def own() -> None: ...

    own.__module__ = "__main__"
    agent_setup(own)
    setup = registry.setup()
    assert setup is not None
    assert setup.what is own


@pytest.mark.parametrize(
    "declare",
    [
        lambda: agent_setup(5),
        lambda: agent_setup(build, on_failure="ignore"),  # type: ignore[arg-type]
        lambda: agent_setup(build, seconds_max=-1),
        lambda: agent_setup(build, memory_max="4 parsecs"),
    ],
)
def test_wrong_arguments_are_refused(declare: Callable[[], object], registry: Registry) -> None:
    with pytest.raises(UsageError):
        declare()
    assert not registry.setups


# ---- one attempt ---------------------------------------------------------------------------------------------------


def attempted(function: Callable[[], object], folder: Path) -> messages.SetUpEnded:
    """Run a function as the process of a set-up does."""
    module = types.ModuleType("of_the_set_up")
    module.function = function  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        definition = messages.AlgorithmDefinition(0, "f", "of_the_set_up:function", "", "3.11")
        return attempt(messages.SetUp(definition), 1, str(folder))
    finally:
        del sys.modules[module.__name__]


def raises(error: BaseException) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


def test_it_runs_in_its_folder_which_slaves_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, before = tmp_path / "set-up", Path.cwd()

    def function() -> dict[str, object]:
        Path("made").touch()
        return {"THREADS": 4}

    ended = attempted(function, folder)
    assert (ended.failure, ended.environment) == ("", {"THREADS": "4", FOLDER: str(folder)})
    assert (folder / "made").exists()
    assert Path.cwd() == before
    monkeypatch.setenv(FOLDER, str(folder))
    assert agent_folder() == str(folder)


def test_without_a_set_up_there_is_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(UsageError, match="no set-up has run here"):
        agent_folder()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionRefusedError("no"), True),
        (TimeoutError("no"), True),
        (MemoryError(), True),
        (OSError(28, "No space left on device"), True),
        (subprocess.TimeoutExpired("wget", 5), True),
        (subprocess.CalledProcessError(-9, "make"), True),
        (subprocess.CalledProcessError(2, "make"), False),
        (FileNotFoundError(2, "No such file or directory"), False),
        (PermissionError(13, "Permission denied"), False),
        (ValueError("no"), False),
        (SystemExit(3), False),
    ],
)
def test_a_failure_leaves_no_folder_and_says_whether_it_may_pass(
    error: BaseException, passes: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = attempted(raises(error), tmp_path / "set-up")
    assert type(error).__name__ in ended.failure
    assert ended.is_passing == passes
    assert not (tmp_path / "set-up").exists()
    assert type(error).__name__ in capsys.readouterr().err


def test_a_set_up_may_end_with_sys_exit(tmp_path: Path) -> None:
    assert not attempted(raises(SystemExit(0)), tmp_path / "set-up").failure


@pytest.mark.parametrize("returned", [5, {"A=B": "c"}, {"": "c"}, {"A": "\0"}, {str(i): "" for i in range(200)}])
def test_what_is_no_environment_is_refused(returned: object, tmp_path: Path) -> None:
    assert "it returned" in attempted(lambda: returned, tmp_path / "set-up").failure


def test_a_command_runs_in_a_shell(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mwpy._roles.definitions.REGISTRY", registry)
    assert setup_of(Codec()) == (None, False)
    agent_setup("echo built > done; test -s done", on_failure="stop")
    set_up, stops = setup_of(Codec())
    assert set_up is not None
    assert stops
    assert not attempt(set_up, 1, str(tmp_path / "a")).failure
    assert (tmp_path / "a" / "done").read_text() == "built\n"
    registry.setups.clear()
    agent_setup("exit 3")
    set_up, _ = setup_of(Codec())
    assert set_up is not None
    failure = attempt(set_up, 1, str(tmp_path / "b")).failure
    assert failure == "subprocess.CalledProcessError: Command 'exit 3' returned non-zero exit status 3"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
