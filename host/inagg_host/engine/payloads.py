"""What blocks carry: scales, refinements and values, written from an operation's tensor and read into its sums."""

from __future__ import annotations

import numpy as np

from inagg_host import kernels
from inagg_wire.formats import JobFormat
from inagg_wire.layout import HEADER_BYTES

from .epoch import RanksDisagree, exceeds
from .operation import Operation
from .plan import SIGNATURE_LANES, Item, Phase, agrees, scales_per_block, signature
from .window import Bytes, Integers, Window

NOT_SIGNED = np.zeros(0, np.uint8)


class Payloads:
    """Those of one job, whose blocks go to so many shards in turn: block g of the job is the next one of shard g mod
    shards. It remembers nothing; what it learns it writes into the operation."""

    def __init__(self, fmt: JobFormat, lanes: int, shards: int) -> None:
        self.scale_lanes = scale_lanes = fmt.scale_lanes(lanes)
        self.scales = scales_per_block(scale_lanes)
        """How many scales fit into one block."""
        self.signed = scale_lanes > SIGNATURE_LANES
        """Whether blocks of scales have room for a signature."""
        self._signature = slice(scale_lanes - SIGNATURE_LANES, scale_lanes)  # where it stands in them
        self._shards = shards

    def signature_of(self, operation: Operation) -> Bytes:
        """What signs its scales; nothing, if they have no room for it."""
        if not self.signed:
            return NOT_SIGNED
        float_type = None if operation.maxima else operation.job.float_type
        return signature(operation.values.size, float_type, operation.divisor)

    def write(self, operation: Operation, item: Item, number: int, count: int, window: Window) -> None:
        """The payloads of ``count`` blocks of ``item``, into the next rows of ``window``; the first of them has this
        ``number`` in the job. Raises RuntimeError if values exceed their scales."""
        if item.phase is Phase.VALUES:
            self._write_values(operation, item, number, count, window)
        else:
            self._write_scales(operation, item, window.rows(window.next, 1)[0, HEADER_BYTES:])

    def _write_values(self, operation: Operation, item: Item, number: int, count: int, window: Window) -> None:
        first, step = number - (operation.first_block + item.start - item.first), self._shards
        scales, refinement, row = operation.agreed, operation.refinement, window.place(window.next)
        if operation.codec is not None:
            bad = operation.codec.encode(scales, refinement, first, number, step, count, window.ring, row)
        else:
            bad = operation.runs.encode(
                operation.values, scales, refinement, first, number, step, count, window.ring, row
            )
        if bad != kernels.ALL_GOOD:
            raise exceeds(first + bad * step)
        if operation.contributed is not None:
            every = np.arange(count)
            kernels.decode_own(
                operation.job, window.ring, row + every, operation.contributed, first + step * every, scales, refinement
            )

    def _write_scales(self, operation: Operation, item: Item, payload: Bytes) -> None:
        """Scales, or their refinements."""
        job, chunk = operation.job, slice(item.first, item.first + item.blocks)
        payload[item.blocks :] = 0
        if item.phase is Phase.REFINE:
            sent = payload[: item.blocks]
            kernels.refine_bytes(job, operation.magnitudes[chunk], operation.agreed[chunk], sent)
            return
        if operation.scaled < chunk.stop and not operation.maxima:
            if operation.codec is not None:
                operation.magnitudes[chunk] = operation.codec.largest(item.first, item.blocks)
            else:
                values = operation.values[item.first * job.lanes : (item.first + item.blocks) * job.lanes]
                operation.magnitudes[chunk] = kernels.largest(job, values)
            operation.own[chunk] = kernels.scale_bytes(job, operation.magnitudes[chunk])
            operation.scaled = chunk.stop
        payload[: item.blocks] = operation.own[chunk]
        if self.signed:
            payload[self._signature] = self.signature_of(operation)

    def read(
        self, operation: Operation, item: Item, shard: int, data: Bytes, size: int, places: Integers, blocks: Integers
    ) -> None:
        """Use the results of ``blocks`` (the shard's numbering) of ``item``, which stand at ``places`` of ``data``,
        datagrams of ``size`` bytes. Raises `RanksDisagree`, or RuntimeError if the switch has not done its part."""
        operation.left -= len(blocks)
        if item.phase is Phase.VALUES:
            offset = shard - (operation.first_block + item.start - item.first)
            if operation.codec is not None:
                operation.invalid_codes += operation.codec.decode(
                    data, size, places, blocks, self._shards, offset, operation.agreed, operation.refinement,
                    operation.divisor,
                )  # fmt: skip
            else:
                operation.invalid_codes += operation.runs.decode(
                    data, size, places, blocks, self._shards, offset, operation.out, operation.agreed,
                    operation.refinement, operation.divisor,
                )  # fmt: skip
        else:
            self._read_scales(operation, item, data[places[0] * size + HEADER_BYTES : (places[0] + 1) * size])

    def _read_scales(self, operation: Operation, item: Item, payload: Bytes) -> None:
        """Scales that are agreed on, or their refinements."""
        chunk, agreed = slice(item.first, item.first + item.blocks), payload[: item.blocks]
        if item.phase is Phase.SCALE:
            if self.signed and not agrees(payload[self._signature].tobytes()):
                kind = "uint8" if operation.maxima else operation.job.float_type.name.lower()
                raise RanksDisagree(
                    f"another rank reduces something else than this one's {operation.values.size} elements of {kind} "
                    f"(divisor {operation.divisor}): all ranks must reduce tensors of "
                    "the same sizes and types in the same order"
                )
            if (agreed < operation.own[chunk]).any():
                raise RuntimeError("the switch returned a smaller scale than this rank sent; it does not take maxima")
            operation.agreed[chunk] = agreed
        else:
            operation.refinement[chunk] = agreed
        operation.ready[item.phase, item.first // operation.chunk] = True
