"""The kernels of `inagg_host.codec` as the core calls them: by address, with the record of an operation."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_host.codec import Job
from inagg_host.codec.calls import CODEC, SIGNATURE, Room
from inagg_host.codec.scales import refine_bytes
from inagg_host.codec.table import COLUMNS, write_key, write_unit

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(SIGNATURE.args))


class Call:
    """An operation, of one piece, and the kernels of its job. All arrays are contiguous; no number is checked."""

    def __init__(
        self,
        job: Job,
        values: Array,
        agreed: Bytes | None = None,
        refinement: Bytes | None = None,
        *,
        ring: Bytes | None = None,
        contributed: Array | None = None,
        data: Bytes | None = None,
        places: Integers | None = None,
        numbers: Integers | None = None,
        shards: int = 1,
        divisor: int = 1,
        past: bool = False,
    ) -> None:
        """``values``: 1-D, of the job's type, which `encode` reads and `decode` writes. ``agreed`` and ``refinement``:
        a byte for each block; None: zeros. ``ring``: (rows, ``job.datagram_bytes``), of all shards; ``contributed``: as
        ``values``, for what codes stand for. ``data``: results, (any, ``job.result_bytes``), of which those in the rows
        ``places`` are of the blocks ``numbers``. ``divisor``, ``past``: see `codec.decoder.decode`."""
        self.job, blocks = job, job.blocks(values.size)
        ring = np.zeros((shards, job.datagram_bytes), np.uint8) if ring is None else ring
        data = np.zeros((0, job.result_bytes), np.uint8) if data is None else data
        none, zeros = np.zeros(0, np.int64), np.zeros(blocks, np.uint8)
        places, numbers = none if places is None else places, none if numbers is None else numbers
        self.room, self.record = Room(job, len(ring)), np.zeros(1, CODEC)
        self.arrays: dict[str, Array] = {
            "values": job.bits(values), "out": job.bits(values), "agreed": zeros if agreed is None else agreed,
            "refinement": zeros if refinement is None else refinement, "own": np.zeros(blocks, np.uint8),
            "magnitudes": np.zeros(blocks, np.uint64), "ring": ring, "data": data, "places": places, "numbers": numbers,
        }  # fmt: skip
        if contributed is not None:
            self.arrays["contributed"] = job.bits(contributed)
        assert all(array.flags.c_contiguous for array in self.arrays.values())
        record: Any = self.record[0]
        self.room.describe(record)
        for name, value in {
            **{name: array.ctypes.data for name, array in self.arrays.items()},
            "elements": values.size, "blocks": blocks, "piece": values.size, "piece_blocks": blocks,
            "shards": shards, "divisor": divisor, "past": past, "rows": len(ring), "stride": job.datagram_bytes,
            "data_bytes": data.size, "results": places.size,
        }.items():  # fmt: skip
            record[name] = value
        kernels, self._address = self.room.kernels, self.record.ctypes.data
        self._scale, self._encode, self._decode = map(_FUNCTION, (kernels.scale, kernels.encode, kernels.decode))

    def scale(self, first: int, count: int, number: int = 0) -> tuple[Integers, Bytes]:
        """Find the largest magnitudes (the bits of float64) and own scales of ``count`` blocks from ``first`` on, and
        draft them, if the job has drafts, with numbers on from ``number``. Both, of all blocks."""
        self._scale(self._address, first, count, number, 0)
        return self.arrays["magnitudes"], self.arrays["own"]

    def agree(self) -> tuple[Bytes, Bytes]:
        """The bytes of both rounds, if no other worker has larger ones; the second are zeros, if there is one round."""
        job, blocks = self.job, self.arrays["own"].size
        magnitudes, own = self.scale(0, blocks)
        refinements = np.zeros(blocks, np.uint8)
        if job.refined:
            refine_bytes(magnitudes, own, job.dith8, job.lowest_scale, refinements)
        return own, refinements

    def encode(self, first: int, number: int, count: int, row: int) -> int:
        """Blocks ``first`` and every ``shards``-th after it, numbered on likewise, into the rows from ``row`` on. As
        `codec.encoder.encode`."""
        return int(self._encode(self._address, first, number, count, row))

    def decode(self, begin: int, end: int, offset: int = 0) -> int:
        """The results ``begin`` to ``end`` - 1, of the blocks ``numbers`` * ``shards`` + ``offset``. As
        `codec.decoder.decode`."""
        return int(self._decode(self._address, self.job.result_bytes, begin, end, offset))


def make_table(
    job: Job, scales: Bytes, refinements: Bytes, fraction_bits: int, numbers: Integers | None = None
) -> npt.NDArray[np.int32]:
    """A row for each of the agreed ``scales`` and ``refinements``, of the same blocks.

    ``fraction_bits``: of ``job.for_encode`` or ``job.for_decode``. ``numbers``: of the blocks in the job, for the noise
    of contributions.
    """
    table = np.zeros((scales.size, COLUMNS), np.int32)
    rows = table.reshape(-1)
    for row in range(scales.size):
        write_unit(rows, row, int(scales[row]), int(refinements[row]), job.refined, fraction_bits)
        if numbers is not None:
            write_key(rows, row, job.seed, job.rank, int(numbers[row]))
    return table
