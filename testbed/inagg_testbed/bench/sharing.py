"""How jobs share a link: with each other, and with a TCP stream.

Two hosts, each with a shaped link to the switch. A job has a rank on each, so two jobs share both links, in both
directions; the TCP stream goes from the first host to the switch, beside the contributions. Jobs have two tensors in
flight all the time, and rates are those of the time in which all that is compared runs.
"""

from __future__ import annotations

import socket
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from inagg_host.allreduce import AllReduce

from ..progress import Doing
from ..topology import LinkSpec, Node, inside, open_topology, start_target
from .children import TOO_SLOW, Child, crew, receive_all, requests
from .links import run_limit_s

HOSTS = 2
TCP_PORT = 5201
LEAD_S = 0.5
"""Time left out at the beginning: windows find their size."""
START_LIMIT_S = 120.0
IN_FLIGHT = 2
CHUNK_BYTES = 1 << 20


class Progress(NamedTuple):
    """When something had done how much: elements of a job, bytes of a stream."""

    times_s: list[float]
    done: list[int]

    def at(self, when_s: float) -> float:
        """How much was done, in between as if the rate were even."""
        return float(np.interp(when_s, self.times_s, self.done))

    def rate(self, begin_s: float, end_s: float) -> float:
        """Mean amount done in a second, from ``begin_s`` to ``end_s``."""
        return (self.at(end_s) - self.at(begin_s)) / (end_s - begin_s)


class JobRun(NamedTuple):
    """Record of a rank: progress; at each of its times, how many datagrams it had sent again and how often its timer
    had run out; and the round trip."""

    progress: Progress
    again: list[tuple[int, int]]
    rtt_s: float

    def again_in(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Count datagrams that were sent again between two times, and how often the timer ran out."""
        times = self.progress.times_s
        first, last = self.again[max(0, bisect_right(times, begin_s) - 1)], self.again[bisect_right(times, end_s) - 1]
        return {"resent": last[0] - first[0], "timeouts": last[1] - first[1]}


def _rank(connection: Connection, rank: int, options: dict[str, Any]) -> None:
    """A rank of a job: joins, then keeps tensors in flight as long as it is told to."""
    with AllReduce(rank=rank, workers=HOSTS, **options) as all_reduce:
        connection.send((None, None))
        for elements, after_s, seconds in requests(connection):
            values = np.random.default_rng(rank).standard_normal(elements, np.float32)
            free = [np.empty_like(values) for _ in range(IN_FLIGHT)]
            time.sleep(after_s)
            times, done, again = [time.monotonic()], [0], [_again(all_reduce)]
            pending: list[tuple[np.ndarray[Any, Any], Any]] = []
            over = False
            while not over or pending:
                if not over and free:
                    buffer = free.pop()
                    np.copyto(buffer, values)
                    # The last element says whether this is the last tensor: only rank 0 looks at the clock.
                    buffer[-1] = float(rank == 0 and time.monotonic() - times[0] > seconds)
                    pending.append((buffer, all_reduce.submit(buffer)))
                    continue
                buffer, operation = pending.pop(0)
                operation.result()
                times.append(time.monotonic())
                done.append(done[-1] + elements)
                again.append(_again(all_reduce))
                over = over or bool(buffer[-1] != 0)
                free.append(buffer)
            connection.send((None, JobRun(Progress(times, done), again, all_reduce.counters.rtt_s)))


def _again(all_reduce: AllReduce) -> tuple[int, int]:
    counters = all_reduce.counters
    return counters.resent, counters.timeouts


def _receiver(connection: Connection, host: str) -> None:
    """The end of a TCP stream: tells when how much has come."""
    with socket.create_server((host, TCP_PORT)) as server:
        connection.send((None, None))
        for _ in requests(connection):
            stream, _ = server.accept()
            times, done = [time.monotonic()], [0]
            with stream:
                while data := len(stream.recv(CHUNK_BYTES)):
                    times.append(time.monotonic())
                    done.append(done[-1] + data)
            connection.send((None, Progress(times, done)))


def _sender(connection: Connection, host: str) -> None:
    """The beginning of a TCP stream, with the congestion control that it is told."""
    connection.send((None, None))
    data = bytes(CHUNK_BYTES)
    for congestion, seconds in requests(connection):
        end_s = time.monotonic() + seconds
        with socket.socket() as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            stream.connect((host, TCP_PORT))
            while time.monotonic() < end_s:
                stream.sendall(data)
        connection.send((None, None))


class Hosts(NamedTuple):
    """Two hosts with the ranks of two jobs and the ends of a TCP stream: see `open_hosts`."""

    link: LinkSpec | None
    elements: int
    jobs: Sequence[Sequence[Child]]
    receiver: Child
    sender: Child

    def run(self, seconds: float, starts: Sequence[float], congestion: str | None) -> tuple[list[JobRun], Progress]:
        """Run as many jobs as there are ``starts``, seconds from now, until ``seconds`` from now, and a TCP stream if
        its congestion control is named."""
        busy: list[Child] = []
        jobs = self.jobs[: len(starts)]
        if congestion is not None:
            self.receiver.send(None)
            self.sender.send((congestion, seconds))
            busy += [self.receiver, self.sender]
        for job, after_s in zip(jobs, starts, strict=True):
            for child in job:
                child.send((self.elements, after_s, seconds - after_s))
        limit_s = seconds + run_limit_s(self.link, 4 * self.elements, IN_FLIGHT)
        runs = [receive_all(job, limit_s, TOO_SLOW)[0] for job in jobs]
        stream = receive_all(busy, limit_s, TOO_SLOW)[0] if busy else Progress([], [])
        return runs, stream


@contextmanager
def open_hosts(link: str, format_: str, elements: int, **options: Any) -> Iterator[Hosts]:
    """Start them around a switch, and end all at the end."""
    with (
        open_topology(HOSTS, link) as topology,
        start_target("software", topology) as switch,
        crew() as children,
    ):

        def start(name: str, node: Node, main: Any, *arguments: Any) -> Child:
            children.append(Child(name, inside, node, main, *arguments))
            return children[-1]

        options = {"switch": switch.control, "format": format_, **options}
        jobs = [
            [
                start(f"rank {k} of {job}", node, _rank, k, {**options, "job": job})
                for k, node in enumerate(topology.workers)
            ]
            for job in ("first", "second")
        ]
        receiver = start("receiver", topology.switch, _receiver, topology.switch.host)
        sender = start("sender", topology.workers[0], _sender, topology.switch.host)
        receive_all(children, START_LIMIT_S)
        yield Hosts(topology.link, elements, jobs, receiver, sender)


def jain(rates: Sequence[float]) -> float:
    """Jain's index of fairness (Jain, Chiu, Hawe 1984): 1 if all have the same, 1/n if one has all."""
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))


def congestion_controls() -> list[str]:
    """Congestion controls that TCP streams may have here, one of each family: cubic and bbr."""
    with open("/proc/sys/net/ipv4/tcp_available_congestion_control") as file:
        available = file.read().split()
    return [name for name in ("cubic", "bbr") if name in available]


def steps_of_size() -> int:
    """Number of steps that `bench_sharing` tells of: the start of the ranks, and runs."""
    return 4 + 2 * len(congestion_controls())


def bench_sharing(
    link: str, format_: str, size: int, *, seconds: float, progress: Doing = lambda _: None, **options: Any
) -> Iterator[dict[str, Any]]:
    """Lines of results: one job alone; two; a second one that starts in the middle; one beside each kind of TCP.
    ``progress`` is told each run."""
    about = {"bench": "sharing", "link": link, "format": format_, "elements": size // 4}
    progress("starting the ranks")
    with open_hosts(link, format_, size // 4, **options) as hosts:
        hosts.run(1.0, [0.0, 0.0], None)  # warm caches and kernels
        progress("one job")
        (alone,), _ = hosts.run(seconds, [0.0], None)
        begin_s, end_s = _common([alone.progress])
        alone_rate = alone.progress.rate(begin_s, end_s)
        yield {
            **about, "case": "one job", "elements_per_s": alone_rate, "rtt_s": alone.rtt_s,
            **alone.again_in(begin_s, end_s),
        }  # fmt: skip
        progress("two jobs")
        both, _ = hosts.run(seconds, [0.0, 0.0], None)
        begin_s, end_s = _common([run.progress for run in both])
        rates = [run.progress.rate(begin_s, end_s) for run in both]
        yield {
            **about, "case": "two jobs", "elements_per_s": sum(rates), "shares": [rate / alone_rate for rate in rates],
            "jain": jain(rates), "together": sum(rates) / alone_rate,
            "rtt_s": max(run.rtt_s for run in both), **_both(run.again_in(begin_s, end_s) for run in both),
        }  # fmt: skip
        progress("second job in the middle")
        (first, second), _ = hosts.run(seconds, [0.0, seconds / 2], None)
        begin_s, end_s = second.progress.times_s[0], first.progress.times_s[-1]
        later = [run.progress.rate(begin_s + LEAD_S, end_s) for run in (first, second)]
        yield {
            **about, "case": "second job in the middle", "elements_per_s": sum(later),
            "shares": [rate / alone_rate for rate in later], "jain": jain(later), "together": sum(later) / alone_rate,
            **first.again_in(begin_s, end_s),
        }  # fmt: skip
        for congestion in congestion_controls():
            progress(f"TCP ({congestion})")
            _, stream = hosts.run(seconds, [], congestion)
            tcp_alone = stream.rate(*_common([stream]))
            progress(f"beside TCP ({congestion})")
            (job,), stream = hosts.run(seconds, [0.0], congestion)
            begin_s, end_s = _common([job.progress, stream])
            rate, tcp = job.progress.rate(begin_s, end_s), stream.rate(begin_s, end_s)
            yield {
                **about, "case": f"beside TCP ({congestion})", "elements_per_s": rate,
                "shares": [rate / alone_rate, tcp / tcp_alone], "tcp_bytes_per_s": tcp,
                "rtt_s": job.rtt_s, **job.again_in(begin_s, end_s),
            }  # fmt: skip


def _both(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Their sums, by name."""
    all_of = list(counts)
    return {name: sum(each[name] for each in all_of) for name in all_of[0]}


def _common(all_of: Sequence[Progress]) -> tuple[float, float]:
    """The time in which all run, but for its beginning."""
    return max(p.times_s[0] for p in all_of) + LEAD_S, min(p.times_s[-1] for p in all_of)
