"""Ordered slaves: each slave builds a table once, and gets the tasks that need this table.

    python examples/ordered_slaves/ordered_slaves.py            # this machine, one slave per core
    python examples/ordered_slaves/ordered_slaves.py --mw-local 4

On several machines, start the master first. The slaves find it through its resource file:

    python examples/ordered_slaves/ordered_slaves.py --mw-master --mw-resource-file ordered.rsc
    python examples/ordered_slaves/ordered_slaves.py --mw-slave --mw-resource-file ordered.rsc

The tasks ask how many primes there are between two numbers. With a table of the primes in that block of
numbers, the answer is quick. Making the table takes time. Therefore each slave makes the table of one block
before it takes tasks. An *ordered* slave runs only tasks that are addressed to it. The master sends each slave
one question at a time, from the block of its table. When that block has no questions left, the slave gets a
question from the block with the most questions. It makes the table of that block and continues with it.
"""

import sys
from bisect import bisect_left
from collections import Counter

import mwpy

BLOCK = 20_000
BLOCKS = 8
QUESTIONS_A_BLOCK = 5

Question = tuple[int, int]

tables: dict[int, list[int]] = {}
"""The tables that this slave process has made: each block with its primes."""


def block_of(question: Question) -> int:
    return question[0] // BLOCK


def home_block(sid: mwpy.SlaveId) -> int:
    """Return the block of a slave's first table. Master and slave compute the same block."""
    return sum(sid.encode()) % BLOCKS


def make_table(block: int) -> None:
    numbers = range(max(2, block * BLOCK), (block + 1) * BLOCK)
    tables[block] = [n for n in numbers if all(n % d for d in range(2, int(n**0.5) + 1))]


@mwpy.slave_algorithm
def slave(mw: mwpy.Slave, argv: list[str]) -> int:
    """Make the table, run tasks until the master ends the computation, and clean up."""
    make_table(home_block(mw.sid))
    try:
        return mw.loop_simple()
    finally:
        tables.clear()


@mwpy.task_algorithm
def count_primes(question: Question) -> tuple[int, bool]:
    """Count the primes from first to last. Also return whether the table existed already."""
    first, last = question
    had_table = block_of(question) in tables
    if not had_table:
        make_table(block_of(question))
    primes = tables[block_of(question)]
    return bisect_left(primes, last) - bisect_left(primes, first), had_table


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Give each ordered slave one question at a time until all are answered."""
    questions = all_questions()
    asked = unanswered = len(questions)
    idle: list[mwpy.SlaveId] = []
    block: dict[mwpy.SlaveId, int] = {}  # the block of each slave's last question
    total = ready = 0
    mw.allocate_slaves(BLOCKS, kind="ordered")
    while unanswered:
        mw.loop()
        idle += mw.connected_ordered_slaves()
        for result in mw.results():
            sid, question = result.tag
            if isinstance(result.error, mwpy.TaskUnrunnable):  # its slave is gone
                questions.append(question)
                continue
            primes, had_table = result.value
            unanswered, total, ready = unanswered - 1, total + primes, ready + had_table
            idle.append(sid)
        gone = mw.disconnected_ordered_slaves()
        idle = [sid for sid in idle if sid not in gone]
        while idle and questions:
            sid = idle.pop()
            question = take_one(questions, block.get(sid, home_block(sid)))
            block[sid] = block_of(question)
            mw.submit(count_primes.task(question), sid=sid, tag=(sid, question))
    print(f"{total} primes in {asked} questions, {ready} of them to a slave that had the table.")
    return 0


def all_questions() -> list[Question]:
    """Divide the numbers below BLOCKS * BLOCK into questions (first, last). A question excludes `last`."""
    step = BLOCK // QUESTIONS_A_BLOCK
    return [(first, first + step) for first in range(0, BLOCKS * BLOCK, step)]


def take_one(questions: list[Question], block: int) -> Question:
    """Take a question about the block. If none is left, take one about the block with the most questions."""
    left = Counter(map(block_of, questions))
    if not left[block]:
        block = max(left, key=lambda other: left[other])
    question = next(question for question in questions if block_of(question) == block)
    questions.remove(question)
    return question


if __name__ == "__main__":
    sys.exit(mwpy.main())
