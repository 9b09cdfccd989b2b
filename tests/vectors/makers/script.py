"""A trace: datagrams into a switch, and what must come of each, said by the author of the trace.

Nothing here keeps a switch's state. Who writes a trace says for each datagram whether it is absorbed, completes a
sum, is answered again, or is dropped; only the arithmetic of a complete sum is computed, from the codes that the
author names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from inagg_wire.errors import NOTICED, Reason
from inagg_wire.formats import FORMATS, JobFormat
from inagg_wire.header import Datagram, Header
from inagg_wire.layout import Encoding, Kind, Op
from inagg_wire.noise import switch_words
from inagg_wire.payload import pack
from inagg_wire.reencode import combine, contribution_integers, result_codes
from inagg_wire.slots import Lease

from .common import Vector

Address = tuple[str, int]


@dataclass(frozen=True)
class Job:
    """A binding, as the control plane gives it to a switch."""

    job: int
    token: int
    format: str
    lanes: int
    lease: Lease
    seed: int
    workers: tuple[Address, ...]
    resume_block: int = 0
    scatters: bool = False

    @property
    def fmt(self) -> JobFormat:
        return FORMATS[self.format]

    def epoch(self, token: int, resume_block: int) -> Job:
        """The same job in a new epoch, which begins with a block."""
        return replace(self, token=token, resume_block=resume_block)

    def send(self, slot: int, generation: int, codes: list[int], op: Op = Op.SUM, **changed: int) -> bytes:
        """A contribution of this job; ``changed`` format, job or token make it a wrong one that is sound in itself."""
        encoding = Encoding(changed.pop("format", self.fmt.encoding(op)))
        job, token = changed.pop("job", self.job), changed.pop("token", self.token)
        owner = changed.pop("owner", 0)
        assert not changed
        header = Header(Kind.CONTRIBUTION, op, encoding, len(codes), job, token, slot, generation, owner=owner)
        return Datagram(header, pack(encoding, np.array(codes, np.uint32))).pack()

    def sum_of(
        self, slot: int, generation: int, contributed: list[list[int]], op: Op = Op.SUM, owner: int = 0
    ) -> bytes:
        """The result of those contributions."""
        n = len(self.workers)
        assert len(contributed) == n, "a result needs one contribution of each worker"
        parts = [contribution_integers(op, self.fmt, n, np.array(codes, np.uint32))[0] for codes in contributed]
        total = parts[0]
        for part in parts[1:]:
            total = combine(op, total, part)
        codes = result_codes(op, self.fmt, n, total, switch_words(self.seed, slot, generation, total.size))
        encoding = self.fmt.result_encoding(op, n)
        header = Header(Kind.RESULT, op, encoding, total.size, self.job, self.token, slot, generation, owner=owner)
        return Datagram(header, pack(encoding, codes)).pack()

    def ack(self, slot: int, generation: int, owner: int) -> bytes:
        """What the others get when the result goes to the rank ``owner`` - 1."""
        encoding = self.fmt.result_encoding(Op.SUM, len(self.workers))
        return Header(Kind.ACK, Op.SUM, encoding, 0, self.job, self.token, slot, generation, owner=owner).pack()


@dataclass
class Script:
    """The steps of one trace, in order. ``source`` is a rank of ``job`` or any address."""

    what: str
    steps: list[Vector] = field(default_factory=list)

    def bind(self, what: str, job: Job) -> None:
        """The control plane admits a job, or its new epoch: the slots of its lease are cleared."""
        workers = [list(w) for w in job.workers]
        lease = {"base": job.lease.base, "slots": job.lease.slots}
        numbers = {"job": job.job, "token": job.token, "format": job.format, "lanes": job.lanes, "seed": job.seed}
        numbers["resume_block"] = job.resume_block
        numbers["scatters"] = job.scatters
        self.steps.append({"what": what, "bind": {**numbers, "lease": lease, "workers": workers}})

    def unbind(self, what: str, job: Job) -> None:
        """The job ends."""
        self.steps.append({"what": what, "unbind": job.job})

    def _step(self, what: str, source: Address, data: bytes, outcome: str, **more: object) -> None:
        step = {"what": what, "source": list(source), "datagram": data.hex(), "outcome": outcome}
        self.steps.append(step | {"outputs": [], "invalid_codes": 0} | more)

    def absorbed(self, what: str, job: Job, rank: int, data: bytes, invalid_codes: int = 0) -> None:
        """The first contribution of this worker, not the last that the slot waits for."""
        self._step(what, job.workers[rank], data, "absorbed", invalid_codes=invalid_codes)

    def result(self, what: str, job: Job, rank: int, data: bytes, result: bytes, invalid_codes: int = 0) -> None:
        """The last contribution: the result goes to all workers of the job."""
        outputs = [{"to": [list(w) for w in job.workers], "datagram": result.hex()}]
        self._step(what, job.workers[rank], data, "result", outputs=outputs, invalid_codes=invalid_codes)

    def scattered(self, what: str, job: Job, rank: int, data: bytes, result: bytes, owner: int, ack: bytes) -> None:
        """The last contribution: the result goes to the rank ``owner`` - 1, acknowledgements to the others."""
        others = [list(w) for i, w in enumerate(job.workers) if i != owner - 1]
        outputs = [{"to": [list(job.workers[owner - 1])], "datagram": result.hex()}]
        if others:
            outputs.append({"to": others, "datagram": ack.hex()})
        self._step(what, job.workers[rank], data, "result", outputs=outputs)

    def resend(self, what: str, job: Job, rank: int, data: bytes, result: bytes) -> None:
        """A repeated contribution to a complete sum: the result goes to its sender alone."""
        outputs = [{"to": [list(job.workers[rank])], "datagram": result.hex()}]
        self._step(what, job.workers[rank], data, "resend", outputs=outputs)

    def drop(self, what: str, source: Address, data: bytes, reason: Reason) -> None:
        """Counted under ``reason``, and nothing changes. Some reasons are told to the sender."""
        outputs = []
        if reason in NOTICED:
            # what was sent, but kind 3, no lanes, and the reason
            notice = data[:3] + b"\x03" + data[4:6] + b"\0\0" + data[8:10] + int(reason).to_bytes(2) + data[12:24]
            outputs = [{"to": [list(source)], "datagram": notice.hex()}]
        self._step(what, source, data, "drop", reason=int(reason), name=reason.label, outputs=outputs)

    def json(self) -> Vector:
        """The trace as it stands in the file."""
        return {"what": self.what, "steps": self.steps}
