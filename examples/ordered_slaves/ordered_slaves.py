"""Ordered slaves: each slave builds a table once, and gets the tasks that fit it.

    python examples/ordered_slaves/ordered_slaves.py            # here, a slave on each core
    python examples/ordered_slaves/ordered_slaves.py --mw-local 4

On several machines, the master first; the slaves read from its resource file where it is:

    python examples/ordered_slaves/ordered_slaves.py --mw-master --mw-resource-file ordered.rsc
    python examples/ordered_slaves/ordered_slaves.py --mw-slave --mw-resource-file ordered.rsc

How many primes are there between two numbers? The answer is quick with a table of the primes of that
block of numbers, and making the table is what takes time. So each slave makes the table of one block
before it takes tasks. An *ordered* slave runs only what is addressed to it: the master sends each one
question at a time, one that fits its table as long as there are any. When there are none, it gets one of
the block of which most is left to do, makes that table, and stays with it.
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
"""Block to its primes: what this slave process has made so far."""


def block_of(question: Question) -> int:
    return question[0] // BLOCK


def home_block(sid: mwpy.SlaveId) -> int:
    """Which block a slave makes its table of; master and slave must only agree on it."""
    return sum(sid.encode()) % BLOCKS


def make_table(block: int) -> None:
    numbers = range(max(2, block * BLOCK), (block + 1) * BLOCK)
    tables[block] = [n for n in numbers if all(n % d for d in range(2, int(n**0.5) + 1))]


@mwpy.slave_algorithm
def slave(mw: mwpy.Slave, argv: list[str]) -> int:
    """Set up, run tasks until the master says that it is enough, tear down."""
    make_table(home_block(mw.sid))
    try:
        return mw.loop_simple()
    finally:
        tables.clear()


@mwpy.task_algorithm
def count_primes(question: Question) -> tuple[int, bool]:
    """Count the primes from first to last; tell also whether the table was there."""
    first, last = question
    was_there = block_of(question) in tables
    if not was_there:
        make_table(block_of(question))
    primes = tables[block_of(question)]
    return bisect_left(primes, last) - bisect_left(primes, first), was_there


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Give each ordered slave one question at a time until all are answered."""
    questions = all_questions()
    asked = unanswered = len(questions)
    idle: list[mwpy.SlaveId] = []
    block: dict[mwpy.SlaveId, int] = {}  # where each slave is
    total = ready = 0
    mw.allocate_slaves(BLOCKS, kind="ordered")
    while unanswered:
        mw.loop()
        idle += mw.connected_ordered_slaves()
        for result in mw.results():
            primes, was_there = result.value
            unanswered, total, ready = unanswered - 1, total + primes, ready + was_there
            idle.append(result.tag[0])
        questions += [question for _, question in (task.tag for task in mw.unrunnable_tasks())]
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
    """Cut the numbers below BLOCKS * BLOCK into questions (first, last), last not included."""
    step = BLOCK // QUESTIONS_A_BLOCK
    return [(first, first + step) for first in range(0, BLOCKS * BLOCK, step)]


def take_one(questions: list[Question], block: int) -> Question:
    """Take a question about the block, or about the one with the most questions if there is none left."""
    left = Counter(map(block_of, questions))
    if not left[block]:
        block = max(left, key=lambda other: left[other])
    question = next(question for question in questions if block_of(question) == block)
    questions.remove(question)
    return question


if __name__ == "__main__":
    sys.exit(mwpy.main())
