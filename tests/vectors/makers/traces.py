"""traces.json: sequences of datagrams into a switch. The expectations are written by hand, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from inagg_wire.errors import Reason
from inagg_wire.layout import Encoding, Op
from inagg_wire.slots import Lease

from .common import Vector
from .headers import make as make_headers
from .script import Address, Job, Script

MEANING = (
    "Each trace starts with a switch that knows nothing. A step is a binding (`bind`, `unbind`) or a datagram "
    "from `source`, with its `outcome`: absorbed, result (to all workers, or to "
    "one alone and an acknowledgement to the others), resend (to one), or drop, with the "
    "`reason`. `outputs` are all the datagrams that the switch sends for it; `invalid_codes` lanes of it counted "
    "as zero. An address is [host, UDP port]."
)

W0, W1, W2 = ("10.0.0.1", 4001), ("10.0.0.2", 4002), ("10.0.0.3", 4003)
STRANGER: Address = ("10.0.0.99", 4099)
A = Job(7, 0xA0A0A0A1, "nat8", 8, Lease(8, 4), 0x5EED0007, (W0, W1, W2))
X = [1, 2, 3, 29, 0x81, 0x9D, 0, 10]
Y = [1, 2, 4, 29, 0x82, 0x1D, 5, 0x8A]
Z = [1, 1, 5, 29, 0x83, 0x85, 6, 11]


def _complete(script: Script, job: Job, slot: int, generation: int, codes: list[list[int]], op: Op = Op.SUM) -> None:
    """All workers contribute, in rank order."""
    *first, last = range(len(codes))
    for rank in first:
        script.absorbed(f"worker {rank}", job, rank, job.send(slot, generation, codes[rank], op))
    script.result(
        f"worker {last} is the last",
        job,
        last,
        job.send(slot, generation, codes[last], op),
        job.sum_of(slot, generation, codes, op),
    )


def _one_block() -> Script:
    s = Script("one block of three workers")
    s.bind("a job of three", A)
    _complete(s, A, 8, 1, [X, Y, Z])
    return s


def _order() -> Script:
    s = Script("the order of arrival changes nothing, and slots do not touch each other")
    s.bind("a job of three", A)
    s.absorbed("worker 2 first, slot 8", A, 2, A.send(8, 1, Z))
    s.absorbed("worker 1, slot 9", A, 1, A.send(9, 1, Y))
    s.absorbed("worker 0, slot 8", A, 0, A.send(8, 1, X))
    s.absorbed("worker 2, slot 9", A, 2, A.send(9, 1, Z))
    s.result("worker 1 completes slot 8", A, 1, A.send(8, 1, Y), A.sum_of(8, 1, [X, Y, Z]))
    s.result("worker 0 completes slot 9", A, 0, A.send(9, 1, X), A.sum_of(9, 1, [X, Y, Z]))
    return s


def _duplicates() -> Script:
    s = Script("a repeated contribution is never added; after completion it is answered again")
    s.bind("a job of three", A)
    s.absorbed("worker 0", A, 0, A.send(8, 1, X))
    s.drop("worker 0 again, before the sum is complete", W0, A.send(8, 1, X), Reason.DUPLICATE)
    s.absorbed("worker 1", A, 1, A.send(8, 1, Y))
    s.drop("worker 0 again, with other codes", W0, A.send(8, 1, Z), Reason.DUPLICATE)
    result = A.sum_of(8, 1, [X, Y, Z])
    s.result("worker 2 completes the sum", A, 2, A.send(8, 1, Z), result)
    s.resend("worker 1 lost the result and repeats", A, 1, A.send(8, 1, Y), result)
    s.resend("worker 1 again: the same bytes", A, 1, A.send(8, 1, Y), result)
    s.resend("worker 2", A, 2, A.send(8, 1, Z), result)
    return s


def _stale() -> Script:
    s = Script("a contribution delayed by one, two or three generations is never added")
    s.bind("a job of three", A)
    for generation in (1, 2, 3):
        _complete(s, A, 8, generation, [X, Y, Z])
    s.absorbed("generation 4 begins", A, 0, A.send(8, 4, X))
    for late in (1, 2, 3):
        s.drop(f"worker 1's copy from {late} generations ago", W1, A.send(8, 4 - late, Y), Reason.STALE)
    s.absorbed("worker 1", A, 1, A.send(8, 4, Y))
    s.result("worker 2: the sum has none of the late copies", A, 2, A.send(8, 4, Z), A.sum_of(8, 4, [X, Y, Z]))
    s.drop("a late copy after completion gets no result of another generation", W1, A.send(8, 3, Y), Reason.STALE)
    return s


def _window() -> Script:
    s = Script("a slot takes the next generation when its sum is complete, and no other: a rank that counts wrong")
    s.bind("a job of three", A)
    s.drop("generation 2, of a slot that serves 1", W0, A.send(11, 2, X), Reason.OUTSIDE_WINDOW)
    s.absorbed("generation 1", A, 0, A.send(11, 1, X))
    s.absorbed("generation 1", A, 1, A.send(11, 1, Y))
    s.drop("the next one, too early", W2, A.send(11, 2, Z), Reason.OUTSIDE_WINDOW)
    s.drop("the last generation there is", W2, A.send(11, 0x7FFFFFFF, Z), Reason.OUTSIDE_WINDOW)
    s.drop("a worker that has contributed", W1, A.send(11, 7, Z), Reason.OUTSIDE_WINDOW)
    s.drop("with another op: the generation counts", W2, A.send(11, 2, [120] * 8, Op.MAX), Reason.OUTSIDE_WINDOW)
    s.result("worker 2: the sum is what it was", A, 2, A.send(11, 1, Z), A.sum_of(11, 1, [X, Y, Z]))
    s.drop("the one after the next", W0, A.send(11, 3, X), Reason.OUTSIDE_WINDOW)
    _complete(s, A, 11, 2, [Y, Z, X])
    s.drop("nothing of generation 1 is left", W0, A.send(11, 1, X), Reason.STALE)
    _complete(s, A, 11, 3, [Z, X, Y])
    return s


def _late_epoch() -> Script:
    last = 0x7FFFFFFF
    s = Script("an epoch that begins two blocks before the generations wrap: the slots serve what comes first")
    s.bind("block 2^33 - 6 is slot 10", A.epoch(A.token, (last - 1) * 4 + 2))
    s.absorbed("slot 11", A, 0, A.send(11, last, X))
    s.drop("slot 10, the generation before", W0, A.send(10, last - 1, X), Reason.STALE)
    s.drop("slot 9, which has had its last", W0, A.send(9, last, X), Reason.STALE)
    s.drop("slot 11, the first", W1, A.send(11, 1, X), Reason.STALE)
    s.absorbed("worker 1", A, 1, A.send(11, last, Y))
    s.result("worker 2", A, 2, A.send(11, last, Z), A.sum_of(11, last, [X, Y, Z]))
    _complete(s, A, 10, last, [X, Y, Z])
    return s


def _refused() -> Script:
    s = Script("each way not to fit the binding is a reason of its own, and changes nothing")
    s.bind("a job of three", A)
    s.absorbed("worker 0", A, 0, A.send(8, 1, X))
    good = A.send(8, 1, Y)
    s.drop("a result is sent to the switch", W1, A.sum_of(8, 1, [X, Y, Z]), Reason.WRONG_KIND)
    notice = good[:3] + b"\3\1\1\0\0\0\7\0\x29" + good[12:24]
    s.drop("an error notice is sent to the switch", W1, notice, Reason.WRONG_KIND)
    s.drop("a job that the switch does not know", W1, A.send(8, 1, Y, job=8), Reason.UNKNOWN_JOB)
    s.drop("a source that is no worker", STRANGER, good, Reason.UNKNOWN_SOURCE)
    s.drop("a worker's host, but another port", (W1[0], W1[1] + 1), good, Reason.UNKNOWN_SOURCE)
    s.drop("a stranger with a wrong token hears nothing", STRANGER, A.send(8, 1, Y, token=1), Reason.UNKNOWN_SOURCE)
    s.drop("a wrong token", W1, A.send(8, 1, Y, token=0xA0A0A0A0), Reason.WRONG_TOKEN)
    s.drop("a format that the job does not have", W1, A.send(8, 1, Y, format=Encoding.DITH8), Reason.WRONG_FORMAT)
    s.drop("more lanes than the job has", W1, A.send(8, 1, Y + Y), Reason.WRONG_LANES)
    s.drop("the slot below the lease", W1, A.send(7, 1, Y), Reason.SLOT_OUTSIDE_LEASE)
    s.drop("the slot above the lease", W1, A.send(12, 1, Y), Reason.SLOT_OUTSIDE_LEASE)
    s.drop("a newer generation does not help a wrong token", W1, A.send(8, 2, Y, token=1), Reason.WRONG_TOKEN)
    wrong = A.send(7, 1, Y + Y, token=1, format=Encoding.DITH8)
    s.drop("token, format, lanes and slot: the token counts", W1, wrong, Reason.WRONG_TOKEN)
    wrong = A.send(7, 1, Y + Y, format=Encoding.DITH8)
    s.drop("format, lanes and slot: the format counts", W1, wrong, Reason.WRONG_FORMAT)
    s.drop("lanes and slot: the lanes count", W1, A.send(7, 1, Y + Y), Reason.WRONG_LANES)
    s.drop("slot and generation: the slot counts", W1, A.send(12, 1, Y), Reason.SLOT_OUTSIDE_LEASE)
    s.absorbed("worker 1", A, 1, good)
    s.result("worker 2: the sum is as if nothing had been", A, 2, A.send(8, 1, Z), A.sum_of(8, 1, [X, Y, Z]))
    return s


def _malformed() -> Script:
    s = Script("each kind of malformed datagram is dropped, from a worker too, and no notice is sent")
    s.bind("a job of three", A)
    s.absorbed("worker 0", A, 0, A.send(8, 1, X))
    first = {v["reason"]: v for v in reversed(make_headers()["invalid"])}
    for number in sorted(first):
        s.drop(first[number]["what"], W1, bytes.fromhex(first[number]["datagram"]), Reason(number))
    s.absorbed("worker 1", A, 1, A.send(8, 1, Y))
    s.result("worker 2", A, 2, A.send(8, 1, Z), A.sum_of(8, 1, [X, Y, Z]))
    return s


def _scales() -> Script:
    t = Job(9, 0x7E2B0001, "tern", 32, Lease(0, 2), 3, (W0, W1, W2))
    s = Script("a MAX round, its refinement, and a SUM block go through the same slots")
    s.bind("a ternary job of three: 32 lanes, and 8 in MAX blocks", t)
    bytes_ = [[120, 0, 1, 255, 7, 249, 0, 100], [119, 0, 2, 120, 7, 120, 0, 120], [121, 0, 3, 120, 7, 120, 0, 80]]
    _complete(s, t, 0, 1, bytes_, Op.MAX)
    _complete(s, t, 1, 1, [[0, 0, 0, 0, 3, 4, 0, 0], [0] * 8, [200, 0, 9, 0, 255, 0, 0, 0]], Op.MAX)
    s.drop("a MAX block with as many lanes as a SUM block", W0, t.send(0, 2, [0] * 32, Op.MAX), Reason.WRONG_LANES)
    s.drop("a SUM block with as many lanes as a MAX block", W0, t.send(0, 2, [0] * 8), Reason.WRONG_LANES)
    _complete(s, t, 0, 2, [[0, 1, 3, 0] * 8, [1, 1, 3, 0] * 8, [3, 1, 3, 0] * 8])
    result = t.sum_of(1, 1, [[0, 0, 0, 0, 3, 4, 0, 0], [0] * 8, [200, 0, 9, 0, 255, 0, 0, 0]], Op.MAX)
    s.resend("the refinement is answered again", t, 1, t.send(1, 1, [0] * 8, Op.MAX), result)
    return s


def _scattered() -> Script:
    job = replace(A, scatters=True)
    s = Script("results that go to one rank alone: the others get an acknowledgement")
    s.bind("a job of three, on a switch that can do it", job)
    result, ack = job.sum_of(8, 1, [X, Y, Z], owner=2), job.ack(8, 1, 2)
    s.absorbed("worker 0, for rank 1", job, 0, job.send(8, 1, X, owner=2))
    s.drop("worker 1, for a rank that the job does not have", W1, job.send(8, 1, Y, owner=4), Reason.WRONG_OWNER)
    s.drop("that, in a generation that is far ahead", W1, job.send(8, 9, Y, owner=32768), Reason.WRONG_OWNER)
    s.absorbed("worker 1, for rank 1", job, 1, job.send(8, 1, Y, owner=2))
    s.drop("worker 0 again", W0, job.send(8, 1, X, owner=2), Reason.DUPLICATE)
    s.scattered("worker 2 completes the sum", job, 2, job.send(8, 1, Z, owner=2), result, 2, ack)
    s.resend("worker 0 has lost the acknowledgement", job, 0, job.send(8, 1, X, owner=2), ack)
    s.resend("worker 1 has lost the result", job, 1, job.send(8, 1, Y, owner=2), result)
    s.resend("who asks for the result of all gets that", job, 0, job.send(8, 1, X), job.sum_of(8, 1, [X, Y, Z]))
    own = job.sum_of(8, 1, [X, Y, Z], owner=1)
    s.resend("who asks for it as his own gets it", job, 0, job.send(8, 1, X, owner=1), own)
    for rank, (who, codes, owner) in enumerate([(2, X, 3), (0, Y, 0)]):
        s.absorbed(f"the next generation: number {rank}, for another", job, who, job.send(8, 2, codes, owner=owner))
    s.scattered("the last one says for whom it is", job, 1, job.send(8, 2, Z, owner=1),
                job.sum_of(8, 2, [X, Y, Z], owner=1), 1, job.ack(8, 2, 1))  # fmt: skip
    _complete(s, job, 8, 3, [X, Y, Z])
    return s


def _not_scattered() -> Script:
    s = Script("a switch that cannot send a result to one rank alone refuses what asks for it")
    s.bind("a job of three", A)
    s.absorbed("worker 0", A, 0, A.send(8, 1, X))
    s.drop("worker 1, for rank 0", W1, A.send(8, 1, Y, owner=1), Reason.WRONG_OWNER)
    s.absorbed("worker 1, for all", A, 1, A.send(8, 1, Y))
    s.result("worker 2", A, 2, A.send(8, 1, Z), A.sum_of(8, 1, [X, Y, Z]))
    return s


def _scattered_to_one() -> Script:
    job = Job(3, 5, "fix32", 8, Lease(2, 2), 9, (W2,), scatters=True)
    codes = [1, 2, 3, 4, 5, 6, 7, 0xFFFFFFFF]
    s = Script("a job of one whose results go to its only rank: nobody is left to be told")
    s.bind("a job of one", job)
    s.scattered("the first", job, 0, job.send(2, 1, codes, owner=1), job.sum_of(2, 1, [codes], owner=1), 1, b"")
    return s


def _wrong_op() -> Script:
    s = Script("workers that disagree on the op of a block")
    s.bind("a job of three", A)
    other = A.send(8, 1, [120] * 8, Op.MAX)
    s.absorbed("worker 0: SUM", A, 0, A.send(8, 1, X))
    s.drop("worker 1: MAX", W1, other, Reason.WRONG_OP)
    s.drop("worker 0 repeats with MAX: the op is checked before the bitmap", W0, other, Reason.WRONG_OP)
    s.absorbed("worker 1: SUM", A, 1, A.send(8, 1, Y))
    s.result("worker 2: SUM", A, 2, A.send(8, 1, Z), A.sum_of(8, 1, [X, Y, Z]))
    s.drop("MAX after completion", W2, other, Reason.WRONG_OP)
    s.absorbed("MAX in a newer generation", A, 2, A.send(8, 2, [120] * 8, Op.MAX))
    s.drop("SUM in an older one: stale comes first", W1, A.send(8, 1, Y), Reason.STALE)
    return s


def _two_jobs() -> Script:
    b = Job(8, 0xB0B0B0B1, "fix32", 8, Lease(12, 4), 11, (W1, W0))
    s = Script("two jobs: neighbouring leases, the same workers in other ranks, other formats")
    s.bind("the first job, slots 8 to 11", A)
    s.bind("the second job, slots 12 to 15", b)
    s.absorbed("first job, worker 0", A, 0, A.send(11, 1, X))
    fix_0, fix_1 = [1, 0xFFFFFFFF, 1 << 29, 0xE0000000, 0, 5, 6, 7], [2, 1, 1 << 29, 0xE0000000, 0, 5, 0xFFFFFFF9, 7]
    s.absorbed("second job, its worker 0", b, 0, b.send(12, 1, fix_0))
    s.drop("the second job's token in the first job", W0, A.send(11, 1, X, token=b.token), Reason.WRONG_TOKEN)
    s.drop("the first job sends to the second one's slot", W1, A.send(12, 1, Y), Reason.SLOT_OUTSIDE_LEASE)
    s.drop("the second job sends to the first one's slot", W1, b.send(11, 1, fix_0), Reason.SLOT_OUTSIDE_LEASE)
    s.drop("a worker of the first job alone", W2, b.send(12, 1, fix_1), Reason.UNKNOWN_SOURCE)
    s.result("second job", b, 1, b.send(12, 1, fix_1), b.sum_of(12, 1, [fix_0, fix_1]))
    s.unbind("the second job ends", b)
    s.drop("its results are gone", W0, b.send(12, 1, fix_1), Reason.UNKNOWN_JOB)
    s.absorbed("first job, worker 1", A, 1, A.send(11, 1, Y))
    s.result("first job, worker 2", A, 2, A.send(11, 1, Z), A.sum_of(11, 1, [X, Y, Z]))
    return s


def _new_epoch() -> Script:
    first = A.epoch(A.token, 17)
    b = A.epoch(0xA0A0A0A2, 17)
    s = Script("a new epoch: another token, cleared slots, the same block numbers and the same result")
    s.bind("a job of three, from block 17 on, which is generation 5 of slot 9", first)
    s.drop("generation 5 of slot 8, which is block 16", W0, A.send(8, 5, X), Reason.STALE)
    _complete(s, A, 9, 5, [X, Y, Z])
    s.absorbed("generation 6", A, 0, A.send(9, 6, X))
    s.bind("a new epoch, from block 17 on", b)
    s.drop("a datagram of the old epoch", W1, A.send(9, 6, Y), Reason.WRONG_TOKEN)
    s.absorbed("generation 5 once more: the slots were cleared", b, 2, b.send(9, 5, Z))
    s.drop("generation 6, too early", W0, b.send(9, 6, X), Reason.OUTSIDE_WINDOW)
    s.absorbed("worker 1", b, 1, b.send(9, 5, Y))
    s.result("worker 0: but for the token, the old epoch's bytes", b, 0, b.send(9, 5, X), b.sum_of(9, 5, [X, Y, Z]))
    s.absorbed("generation 6: the contribution of the old epoch is gone", b, 0, b.send(9, 6, X))
    s.drop("worker 0 again", W0, b.send(9, 6, X), Reason.DUPLICATE)
    return s


def _invalid_codes() -> Script:
    two = Job(5, 0xD, "nat8", 8, Lease(2, 2), 1, (W0, W1))
    s = Script("codes that name no level count as zero and are counted; a sign without a level is a valid zero")
    s.bind("nat8 for two workers has 30 levels", two)
    codes, other = [30, 31, 0x80, 0xFF, 0x9E, 0x9F, 1, 0], [1] * 8
    s.absorbed("31, -127 and -31 are no levels", two, 0, two.send(2, 1, codes), 3)
    s.result("worker 1", two, 1, two.send(2, 1, other), two.sum_of(2, 1, [codes, other]))
    dith = Job(6, 0xE, "dith8-exact", 8, Lease(4, 2), 1, (W0, W1))
    s.bind("dith8 has -127 to 127", dith)
    codes = [0x7F, 0x80, 0x81, 0, 1, 0xFF, 0x80, 0x7F]
    s.absorbed("-128 is no level", dith, 1, dith.send(4, 1, codes), 2)
    s.result("worker 0, two of them", dith, 0, dith.send(4, 1, codes), dith.sum_of(4, 1, [codes, codes]), 2)
    return s


def _one_worker() -> Script:
    job = Job(1, 1, "nat4", 16, Lease(0, 2), 77, (W0,))
    codes = list(range(16))
    s = Script("a job of one worker: each contribution completes a sum")
    s.bind("a job of one", job)
    s.result("the first", job, 0, job.send(0, 1, codes), job.sum_of(0, 1, [codes]))
    s.resend("repeated", job, 0, job.send(0, 1, codes), job.sum_of(0, 1, [codes]))
    s.result("the next slot", job, 0, job.send(1, 1, codes[::-1]), job.sum_of(1, 1, [codes[::-1]]))
    return s


def _many_workers() -> Script:
    workers = tuple((f"10.0.1.{i}", 4000 + i) for i in range(1, 33))
    job = Job(0xFFFF, 0xFFFFFFFF, "dith8", 8, Lease(0xFFFFFE, 2), 0xFFFFFFFF, workers)
    s = Script("32 workers: the bitmap is full with its highest bit; the last slot there is")
    s.bind("a job of 32", job)
    _complete(s, job, 0xFFFFFF, 1, [[i, 0, 127, 0x81, 1, 0xFF, 2 * i, 0x80 + 1 + i] for i in range(32)])
    s.resend("worker 31 repeats", job, 31, job.send(0xFFFFFF, 1, [0] * 8), _last_result(s))
    return s


def _last_result(s: Script) -> bytes:
    return bytes.fromhex(s.steps[-1]["outputs"][0]["datagram"])


def _no_binding() -> Script:
    s = Script("a switch that has just been started knows no job")
    s.drop("a contribution", W0, A.send(8, 1, X), Reason.UNKNOWN_JOB)
    s.bind("the job is bound", A)
    s.absorbed("the same contribution", A, 0, A.send(8, 1, X))
    return s


def _kinds() -> Iterator[Script]:
    yield _one_block()
    yield _order()
    yield _duplicates()
    yield _stale()
    yield _window()
    yield _late_epoch()
    yield _refused()
    yield _malformed()
    yield _scales()
    yield _wrong_op()
    yield _scattered()
    yield _not_scattered()
    yield _scattered_to_one()
    yield _two_jobs()
    yield _new_epoch()
    yield _invalid_codes()
    yield _one_worker()
    yield _many_workers()
    yield _no_binding()


def make() -> Vector:
    """The content of traces.json."""
    content: Vector = json.loads(json.dumps({"meaning": MEANING, "vectors": [s.json() for s in _kinds()]}))
    return content
