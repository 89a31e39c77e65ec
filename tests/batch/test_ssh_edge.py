"""`_batch.ssh` with a real sshd on four addresses. They look like four hosts that share a home directory."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.batch.systems import until
from tests.systems.ssh import SshNode

from mwpy._batch import BatchUnavailable, Launch
from mwpy._batch.ssh import Ssh
from mwpy._values.jobs import Job, JobState

HOLD = 'trap "echo bye >&2; exit 5" TERM; echo $MWPY_JOB $*; while :; do sleep 0.1; done'


class Edge(Ssh):
    """The class under test, which records its messages."""

    def __init__(self, hosts: Path, config: str, *options: str) -> None:
        self.said: list[str] = []
        super().__init__(hosts, ("-F", config, *options), self.said.append)


@pytest.fixture
def config(ssh_node: SshNode) -> str:
    return str(ssh_node.config)


@pytest.fixture
def home(ssh_node: SshNode) -> Path:
    """The folder of mwpy in the shared home directory."""
    return Path(ssh_node("sh", "-c", "echo $HOME").stdout.strip()) / ".mwpy-ssh"


@pytest.fixture
def edge(ssh_dir: Path, config: str) -> Iterator[Callable[..., Edge]]:
    """Return a function that makes edges with a hosts file. At the end, their jobs are removed."""
    made: list[Edge] = []

    def make(*lines: str, options: tuple[str, ...] = ()) -> Edge:
        (ssh_dir / "hosts").write_text("\n".join(lines) + "\n")
        made.append(Edge(ssh_dir / "hosts", config, *options))
        return made[-1]

    yield make
    mark = mark_of(ssh_dir)
    for each in made:
        try:
            each.remove([job.job_id for job in each.jobs() if job.mark == mark])
        except BatchUnavailable:
            pass


def mark_of(folder: Path) -> str:
    return folder.name.replace(".", "-")


@pytest.fixture
def launch(ssh_dir: Path) -> Callable[..., Launch]:
    """Return a function that makes a launch of a shell command; the last argument is the resource file."""
    (ssh_dir / "r.rsc").write_text("content 1\n")

    def make(command: str, *, slaves: int = 1, words: tuple[str, ...] = ()) -> Launch:
        words = words or ("sh", "-c", command, "agent", "--mw-slave")
        return Launch(mark_of(ssh_dir), str(ssh_dir / "r.rsc"), words, slaves, str(ssh_dir))

    return make


def mine(edge: Edge, launch: Callable[..., Launch]) -> list[Job]:
    """Return the jobs of this test that are not leaving."""
    mark = launch("").mark
    return [job for job in edge.jobs() if job.mark == mark and job.state is not JobState.LEAVING]


def output(home: Path, job: str) -> str:
    """Return the standard output of a job, on any host."""
    return "".join(path.read_text() for path in home.glob(f"jobs/*/{job}/out"))


def test_jobs_start_on_free_slots_and_no_others_are_taken(
    edge: Callable[..., Edge], launch: Callable[..., Launch], home: Path
) -> None:
    """Jobs know their id, and survive their connection. Another edge lists them. A removed job frees its slot."""
    one = edge("node1 slots=2 # the big one", "", "node2 slots=1")
    assert one.jobs() == []
    assert (one.free_places(1), one.free_places(2), one.free_places(3)) == (3, 1, 1)
    jobs = one.submit(launch(HOLD), 4)
    assert len({*jobs}) == 3
    assert one.free_places(1) == 0
    with pytest.raises(BatchUnavailable, match="has 1 free slots now"):
        one.submit(launch(HOLD), 1)
    assert {job.job_id: job.state for job in mine(one, launch)} == dict.fromkeys(jobs, JobState.RUNNING)
    until(lambda: all(output(home, job) for job in jobs), "three that run")
    assert all(output(home, job).startswith(f"{job} --mw-slave --mw-resource-file /") for job in jobs)

    other = edge("node1 slots=2", "node2 slots=1")
    seen = {job.job_id: job for job in mine(other, launch)}
    assert sorted(seen) == sorted(jobs)
    until(lambda: all(job.running_s > 0.5 for job in mine(other, launch)), "a time that grows")
    other.remove([jobs[0], "ssh-none"])
    until(lambda: jobs[0] not in [job.job_id for job in other.jobs()], "a job that is gone")
    outcome = other.outcome(jobs[0])
    assert outcome is not None
    assert (outcome.description, outcome.exit_code) == ("removed", None)
    assert outcome.stderr.endswith("bye")
    until(lambda: mine(one, launch) and one.free_places(1) == 1, "a free slot")
    one.remove(jobs)
    until(lambda: not mine(one, launch), "none left")


def test_the_outcome_of_a_job_has_the_end_of_its_output(
    edge: Callable[..., Edge], launch: Callable[..., Launch], home: Path
) -> None:
    """The outcome has the exit code or the signal. The resource file with the keys is no longer on the host."""
    it = edge("node1 slots=9")
    [failing] = it.submit(launch("cat $3; echo no such module >&2; exit 4"), 1)
    [crashing] = it.submit(launch("kill -SEGV $$"), 1)
    [killed] = it.submit(launch(HOLD), 1)
    until(lambda: output(home, killed) != "", "one that runs")
    groups = [path for path in Path("/proc").glob("[0-9]*") if f"MWPY_JOB={killed}" in environ(path)]
    assert len(groups) >= 2
    for path in groups:
        with suppress(ProcessLookupError):  # the command `sleep` ends all the time
            os.kill(int(path.name), 9)
    until(lambda: not mine(it, launch), "no job left")
    report = [it.outcome(job) for job in (failing, crashing, killed)]
    assert [outcome and (outcome.description, outcome.exit_code) for outcome in report] == [
        ("exit code 4", 4),
        ("killed by signal 11 (SIGSEGV): a crash in native code", None),
        ("its processes are gone without an exit code", None),
    ]
    assert report[0] is not None
    assert report[0].stderr == "no such module"
    assert output(home, failing) == "content 1\n"
    assert not list(home.glob(f"jobs/node1/{failing}/resource-file"))
    assert it.outcome("ssh-none") is None


def environ(process: Path) -> list[str]:
    try:
        return (process / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return []


def test_a_removed_job_that_ignores_sigterm_is_killed(
    edge: Callable[..., Edge], launch: Callable[..., Launch], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is leaving until it is killed. None of its files stays on the host."""
    source = "mwpy._batch.ssh.SOURCE"
    it = edge("node1 slots=9")
    [job] = it.submit(launch('trap "" TERM; echo up; while :; do sleep 0.1; done'), 1)
    until(lambda: output(home, job) == "up\n", "a job that ignores SIGTERM")
    it.remove([job])
    assert [each.state for each in it.jobs() if each.job_id == job] == [JobState.LEAVING]
    from mwpy._batch import ssh

    monkeypatch.setattr(source, ssh.SOURCE.replace(b"KILL_S = 20.0", b"KILL_S = 0.0"))
    until(lambda: job not in [each.job_id for each in it.jobs()], "a job that was killed")
    outcome = it.outcome(job)
    assert outcome is not None
    assert (outcome.description, outcome.exit_code) == ("removed", None)
    assert not [path for path in Path("/proc").glob("[0-9]*") if f"MWPY_JOB={job}" in environ(path)]


def test_an_application_that_the_host_can_read_is_not_copied(
    edge: Callable[..., Edge], launch: Callable[..., Launch], ssh_dir: Path, home: Path
) -> None:
    """The resource file is read at each start."""
    app = ssh_dir / "app.py"
    app.write_text(f"import sys\nprint(__file__, open(sys.argv[-1]).read())\n# {ssh_dir}\n")
    it = edge(f"node1 slots=9 python={sys.executable}")
    started = launch("", words=("/no/such/python3", str(app), "--mw-slave"))
    [first] = it.submit(started, 1)
    until(lambda: output(home, first) == f"{app} content 1\n\n", lambda: output(home, first))
    (ssh_dir / "r.rsc").write_text("content 2\n")
    [second] = it.submit(started, 1)
    until(lambda: output(home, second) == f"{app} content 2\n\n", lambda: output(home, second))


def test_an_application_is_copied_once_to_hosts_that_share_a_home_directory(
    edge: Callable[..., Edge], launch: Callable[..., Launch], ssh_dir: Path, home: Path, tmp_path: Path
) -> None:
    """No host can read `tmp_path`, which belongs to root. A changed application is copied again."""
    app = tmp_path / "packed.pex"
    app.write_text(f"#!/bin/sh\n# {ssh_dir}\necho $0 $MWPY_JOB; stat -c %i $0\n")
    app.chmod(0o755)
    it = edge("node1 slots=1", "node2 slots=1", "node3 slots=1")
    jobs = it.submit(launch("", words=(str(app), "--mw-slave")), 3)
    until(lambda: all(output(home, job).count("\n") == 2 for job in jobs), "three outputs")
    places = {output(home, job).split()[0] for job in jobs}
    assert len(places) == 1
    assert len({output(home, job).split()[2] for job in jobs}) == 1
    [place] = [Path(place) for place in places]
    assert (place.name, place.parent.parent) == ("packed.pex", home / "apps")
    written = place.stat().st_ctime_ns
    until(lambda: not mine(it, launch), "no job left")
    [again] = it.submit(launch("", words=(str(app), "--mw-slave")), 1)
    until(lambda: output(home, again).startswith(str(place)), "the same copy")
    assert place.stat().st_ctime_ns == written
    app.write_text(app.read_text() + "true\n")
    [changed] = it.submit(launch("", words=(str(app), "--mw-slave")), 1)
    until(lambda: output(home, changed) != "" and not output(home, changed).startswith(str(place)), "another copy")


def test_a_host_that_does_not_answer_is_reported_once_and_gets_no_jobs(
    edge: Callable[..., Edge], launch: Callable[..., Launch]
) -> None:
    """The report has ssh's message. Its slots do not count, and it is not called again at once."""
    it = edge("no-such-host slots=50", "node1 slots=1")
    [job] = it.submit(launch(HOLD), 2)
    assert [(each.job_id, each.state) for each in mine(it, launch)] == [(job, JobState.RUNNING)]
    [said] = it.said
    assert said.startswith("host no-such-host cannot be used: ssh: Could not resolve hostname no-such-host: ")
    assert said.endswith("; it is called again in 5 s")
    it.jobs()
    assert len(it.said) == 1


def test_a_hosts_file_may_change_at_any_time(edge: Callable[..., Edge], launch: Callable[..., Launch]) -> None:
    """Jobs on a host that it does not name any more are surplus. While it is wrong, its former content counts."""
    it = edge("node1 slots=1", "node2 slots=1")
    on_first, on_second = sorted(it.submit(launch(HOLD), 2), key=lambda job: it._hosts[0].placed.get(job) is None)
    edge("node2 slots=2")
    assert {job.job_id: job.is_surplus for job in mine(it, launch)} == {on_first: True, on_second: False}
    assert it.free_places(1) == 1
    (Path(str(it._path))).write_text("node2 slots=many\n")
    assert len(mine(it, launch)) == 2
    assert it.free_places(1) == 1
    it.jobs()
    [said] = it.said
    assert said.endswith("write HOST [slots=N] [python=PATH]. Until then, its former content counts")
    it.remove([on_first])
    until(lambda: [host.line.name for host in it._hosts if it.jobs()] == ["node2"], "one host")


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        (
            "node1 python=/no/such/python",
            (),
            r"/no/such/python: .*; name its Python with python=PATH in the hosts file",
        ),
        ("node1", ("-o", "Port=1"), r"ssh: connect to host 127.0.0.1 port 1: Connection refused"),
        ("node1", ("-o", "UserKnownHostsFile=/dev/null"), r"Host key verification failed\."),
        ("node1", ("-o", "PubkeyAuthentication=no"), r"Permission denied"),
        ("node1 python=true", (), r"nothing \(exit code 0\)"),
    ],
)
def test_without_a_host_every_call_is_an_error(
    edge: Callable[..., Edge], launch: Callable[..., Launch], line: str, options: tuple[str, ...], words: str
) -> None:
    """The error is one line with the reason."""
    it = edge(line)
    config = it._options
    it._options = (*options, *config)
    for call in (it.jobs, lambda: it.submit(launch(HOLD), 1)):
        with pytest.raises(BatchUnavailable, match=rf"^no host of .*hosts can be used: node1: .*{words}") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_host_that_answers_again_has_its_jobs(
    edge: Callable[..., Edge], launch: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's jobs count as running for a while, then as lost, and then they are found. A removal is repeated."""
    it = edge("node1 slots=1", "node2 slots=1")
    jobs = it.submit(launch(HOLD), 2)
    good, it._options = it._options, ("-o", "Port=1", *it._options)
    monkeypatch.setattr("mwpy._batch.ssh.FIRST_PAUSE_S", 0.0)
    with pytest.raises(BatchUnavailable, match="Connection refused"):
        it.jobs()
    it.remove([jobs[0]])
    monkeypatch.setattr("mwpy._batch.ssh.BELIEVED_S", 0.0)
    with pytest.raises(BatchUnavailable):
        it.jobs()
    outcome = it.outcome(jobs[1])
    assert outcome is not None
    assert outcome.description in ("its host node1 does not answer", "its host node2 does not answer")
    it._options = good
    assert jobs[1] in [job.job_id for job in it.jobs()]
    assert len([line for line in it.said if line.endswith("answers again")]) == 2
    until(lambda: [job.job_id for job in mine(it, launch)] == [jobs[1]], "the one that was not removed")


def test_output_of_the_hosts_login_shell_is_ignored(
    edge: Callable[..., Edge], launch: Callable[..., Launch], ssh_node: SshNode
) -> None:
    """A login shell may print a greeting."""
    ssh_node("sh", "-c", "echo 'echo hello; echo there >&2' >$HOME/.bashrc")
    try:
        assert mine(edge("node1"), launch) == []
    finally:
        ssh_node("sh", "-c", "rm $HOME/.bashrc")


def test_a_path_with_blanks_stays_one_argument(
    edge: Callable[..., Edge], launch: Callable[..., Launch], home: Path
) -> None:
    """Quotes and dollar signs reach the host unchanged, too."""
    odd = "a b'c\"d$HOME\\"
    [job] = (it := edge("node1 slots=1")).submit(launch("", words=("printf", "%s|", odd, "--mw-slave")), 1)
    until(lambda: output(home, job).startswith(f"{odd}|--mw-slave|"), lambda: shlex.quote(output(home, job)))
    until(lambda: not mine(it, launch), "its end")
