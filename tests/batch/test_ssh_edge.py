"""`_batch.ssh` with a real sshd on four addresses. They look like four hosts that share a home directory."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.batch.systems import until
from tests.systems.ssh import SshNode

from mwpy._batch import BatchUnavailable, Launch, NoFreePlace
from mwpy._batch.ssh import Ssh
from mwpy._values.jobs import Job, JobState

HOLD = 'trap "echo bye >&2; exit 5" TERM; echo $MWPY_JOB $*; while :; do sleep 0.1; done'


class Edge(Ssh):
    """The class under test, which records its messages."""

    def __init__(self, hosts: Path, *options: str) -> None:
        self.said: list[str] = []
        super().__init__(hosts, options, self.said.append)


class Hosts:
    """A folder of a user with a hosts file, and the folder of mwpy in the home directory that the hosts share."""

    def __init__(self, node: SshNode, folder: Path) -> None:
        self.node, self.folder, self.mark = node, folder, folder.name.replace(".", "-")
        self.home = Path(node("sh", "-c", "echo $HOME").stdout.strip()) / ".mwpy-ssh"
        self.made: list[Edge] = []
        (folder / "r.rsc").write_text("content 1\n")

    def edge(self, *lines: str) -> Edge:
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        self.made.append(Edge(self.folder / "hosts", "-F", str(self.node.config)))
        return self.made[-1]

    def launch(self, *words: str) -> Launch:
        """A launch of a shell command, whose last argument is the resource file; or of several words."""
        command = words if len(words) > 1 else ("sh", "-c", *words, "agent", "--mw-slave")
        return Launch(self.mark, str(self.folder / "r.rsc"), command, 1, str(self.folder))

    def mine(self, edge: Edge) -> list[Job]:
        """Return the jobs of this test that are not leaving."""
        return [job for job in edge.jobs() if job.mark == self.mark and job.state is not JobState.LEAVING]

    def output(self, job: str) -> str:
        """Return the standard output of a job, on any host."""
        return "".join(path.read_text() for path in self.home.glob(f"jobs/*/{job}/out"))


@pytest.fixture
def hosts(ssh_node: SshNode, ssh_dir: Path) -> Iterator[Hosts]:
    """At the end, the jobs are removed."""
    hosts = Hosts(ssh_node, ssh_dir)
    yield hosts
    for each in hosts.made:
        with suppress(BatchUnavailable):
            each.remove([job.job_id for job in each.jobs() if job.mark == hosts.mark])


def test_jobs_start_on_free_slots_and_no_others_are_taken(hosts: Hosts) -> None:
    """Jobs know their id, and survive their connection. Another edge lists them. A removed job frees its slot."""
    one = hosts.edge("node1 slots=2 # the big one", "", "node2 slots=1")
    assert one.jobs() == []
    assert (one.free_places(1), one.free_places(2), one.free_places(3)) == (3, 1, 1)
    jobs = one.submit(hosts.launch(HOLD), 4)
    assert len({*jobs}) == 3
    assert one.free_places(1) == 0
    with pytest.raises(NoFreePlace, match="has 1 free slot now"):
        one.submit(hosts.launch(HOLD), 1)
    assert {job.job_id: job.state for job in hosts.mine(one)} == dict.fromkeys(jobs, JobState.RUNNING)
    until(lambda: all(hosts.output(job) for job in jobs), "three that run")
    assert all(hosts.output(job).startswith(f"{job} --mw-slave --mw-resource-file /") for job in jobs)

    other = hosts.edge("node1 slots=2", "node2 slots=1")
    seen = {job.job_id: job for job in hosts.mine(other)}
    assert sorted(seen) == sorted(jobs)
    until(lambda: all(job.running_s > 0.5 for job in hosts.mine(other)), "a time that grows")
    other.remove([jobs[0], "ssh-none"])
    until(lambda: jobs[0] not in [job.job_id for job in other.jobs()], "a job that is gone")
    outcome = other.outcome(jobs[0])
    assert outcome is not None
    assert (outcome.description, outcome.exit_code) == ("removed", None)
    assert outcome.stderr.endswith("bye")
    until(lambda: hosts.mine(one) and one.free_places(1) == 1, "a free slot")
    one.remove(jobs)
    until(lambda: not hosts.mine(one), "none left")


def test_the_outcome_of_a_job_has_the_end_of_its_output(hosts: Hosts) -> None:
    """The outcome has the exit code or the signal. The resource file with the keys is no longer on the host."""
    it = hosts.edge("node1 slots=9")
    [failing] = it.submit(hosts.launch("cat $3; echo no such module >&2; exit 4"), 1)
    [crashing] = it.submit(hosts.launch("kill -SEGV $$"), 1)
    [killed] = it.submit(hosts.launch(HOLD), 1)
    until(lambda: hosts.output(killed) != "", "one that runs")
    groups = [path for path in Path("/proc").glob("[0-9]*") if f"MWPY_JOB={killed}" in environ(path)]
    assert len(groups) >= 2
    for path in groups:
        with suppress(ProcessLookupError):  # the command `sleep` ends all the time
            os.kill(int(path.name), 9)
    until(lambda: not hosts.mine(it), "no job left")
    report = [it.outcome(job) for job in (failing, crashing, killed)]
    assert [outcome and (outcome.description, outcome.exit_code) for outcome in report] == [
        ("exit code 4", 4),
        ("killed by signal 11 (SIGSEGV): a crash in native code", None),
        ("its processes are gone without an exit code", None),
    ]
    assert report[0] is not None
    assert report[0].stderr == "no such module"
    assert hosts.output(failing) == "content 1\n"
    assert not list(hosts.home.glob(f"jobs/node1/{failing}/resource-file"))
    assert it.outcome("ssh-none") is None


def environ(process: Path) -> list[str]:
    try:
        return (process / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return []


def test_an_application_that_the_host_can_read_is_not_copied(hosts: Hosts) -> None:
    """The resource file is read at each start."""
    app = hosts.folder / "app.py"
    app.write_text(f"import sys\nprint(__file__, open(sys.argv[-1]).read())\n# {hosts.folder}\n")
    it = hosts.edge(f"node1 slots=9 python={sys.executable}")
    started = hosts.launch("/no/such/python3", str(app), "--mw-slave")
    [first] = it.submit(started, 1)
    until(lambda: hosts.output(first) == f"{app} content 1\n\n", lambda: hosts.output(first))
    (hosts.folder / "r.rsc").write_text("content 2\n")
    [second] = it.submit(started, 1)
    until(lambda: hosts.output(second) == f"{app} content 2\n\n", lambda: hosts.output(second))


def test_an_application_is_copied_once_to_hosts_that_share_a_home_directory(hosts: Hosts, tmp_path: Path) -> None:
    """No host can read `tmp_path`, which belongs to root. A changed application is copied again."""
    app = tmp_path / "packed.pex"
    app.write_text(f"#!/bin/sh\n# {hosts.folder}\necho $0 $MWPY_JOB; stat -c %i $0\n")
    app.chmod(0o755)
    it = hosts.edge("node1 slots=1", "node2 slots=1", "node3 slots=1")
    jobs = it.submit(hosts.launch(str(app), "--mw-slave"), 3)
    until(lambda: all(hosts.output(job).count("\n") == 2 for job in jobs), "three outputs")
    places = {hosts.output(job).split()[0] for job in jobs}
    assert len(places) == 1
    assert len({hosts.output(job).split()[2] for job in jobs}) == 1
    [place] = [Path(place) for place in places]
    assert (place.name, place.parent.parent) == ("packed.pex", hosts.home / "apps")
    written = place.stat().st_ctime_ns
    until(lambda: not hosts.mine(it), "no job left")
    [again] = it.submit(hosts.launch(str(app), "--mw-slave"), 1)
    until(lambda: hosts.output(again).startswith(str(place)), "the same copy")
    assert place.stat().st_ctime_ns == written
    app.write_text(app.read_text() + "true\n")
    [changed] = it.submit(hosts.launch(str(app), "--mw-slave"), 1)
    until(lambda: hosts.output(changed) != "" and not hosts.output(changed).startswith(str(place)), "another copy")


def test_a_host_that_does_not_answer_is_reported_once_and_gets_no_jobs(hosts: Hosts) -> None:
    """The report has ssh's message. Its slots do not count, and it is not called again at once."""
    it = hosts.edge("no-such-host slots=50", "node1 slots=1")
    [job] = it.submit(hosts.launch(HOLD), 2)
    assert [(each.job_id, each.state) for each in hosts.mine(it)] == [(job, JobState.RUNNING)]
    [said] = it.said
    assert said.startswith("host no-such-host cannot be used: ssh: Could not resolve hostname no-such-host: ")
    assert said.endswith("; it is called again in 5 s")
    it.jobs()
    assert len(it.said) == 1


def test_a_hosts_file_may_change_at_any_time(hosts: Hosts) -> None:
    """Jobs on a host that it does not name any more are surplus. While it is wrong, its former content counts."""
    it = hosts.edge("node1 slots=1", "node2 slots=1")
    on_first, on_second = sorted(it.submit(hosts.launch(HOLD), 2), key=lambda job: it._hosts[0].placed.get(job) is None)
    hosts.edge("node2 slots=2")
    assert {job.job_id: job.is_surplus for job in hosts.mine(it)} == {on_first: True, on_second: False}
    assert it.free_places(1) == 1
    (Path(str(it._path))).write_text("node2 slots=many\n")
    assert len(hosts.mine(it)) == 2
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
def test_without_a_host_every_call_is_an_error(hosts: Hosts, line: str, options: tuple[str, ...], words: str) -> None:
    """The error is one line with the reason."""
    it = hosts.edge(line)
    config = it._options
    it._options = (*options, *config)
    for call in (it.jobs, lambda: it.submit(hosts.launch(HOLD), 1)):
        with pytest.raises(BatchUnavailable, match=rf"^no host of .*hosts can be used: node1: .*{words}") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_host_that_answers_again_has_its_jobs(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's jobs count as running for a while, then as lost, and then they are found. A removal is repeated."""
    it = hosts.edge("node1 slots=1", "node2 slots=1")
    jobs = it.submit(hosts.launch(HOLD), 2)
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
    until(lambda: [job.job_id for job in hosts.mine(it)] == [jobs[1]], "the one that was not removed")


def test_output_of_the_hosts_login_shell_is_ignored(hosts: Hosts) -> None:
    """A login shell may print a greeting."""
    hosts.node("sh", "-c", "echo 'echo hello; echo there >&2' >$HOME/.bashrc")
    try:
        assert hosts.mine(hosts.edge("node1")) == []
    finally:
        hosts.node("sh", "-c", "rm $HOME/.bashrc")


def test_a_path_with_blanks_stays_one_argument(hosts: Hosts) -> None:
    """Quotes and dollar signs reach the host unchanged, too."""
    odd = "a b'c\"d$HOME\\"
    [job] = (it := hosts.edge("node1 slots=1")).submit(hosts.launch("printf", "%s|", odd, "--mw-slave"), 1)
    until(lambda: hosts.output(job).startswith(f"{odd}|--mw-slave|"), lambda: shlex.quote(hosts.output(job)))
    until(lambda: not hosts.mine(it), "its end")
