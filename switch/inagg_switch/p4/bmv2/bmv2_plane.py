"""A bmv2 switch (`simple_switch_grpc`) as a `p4.plane.Plane`: P4Runtime, and Thrift for what P4Runtime cannot do there.

The P4Runtime server of bmv2 neither reads nor writes registers. Writing is not needed, since the program takes slots of
another epoch for cleared. Reading is: for `inagg why`, which says whose contributions are missing. So that alone goes
over Thrift, bmv2's older interface, and only if its address is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from inagg_proto.p4runtime.v1 import p4runtime_pb2 as pb

from ...driver import DriverError
from ...service.access import Access
from ..builds import FLAT, LEAF, ROOT, Build
from ..grpc_stream import GONE, WriteFailed, batches
from ..network import Network
from ..p4_driver import P4Driver
from ..plane import Cell, Count, Delete, SlotState, Update
from ..program import BMV2, BMV2_LEAF, BMV2_ROOT
from .p4runtime_client import Client
from .p4runtime_info import P4Names, read_p4info
from .thrift import Registers

BY_ROLE: Final = {FLAT: BMV2, LEAF: BMV2_LEAF, ROOT: BMV2_ROOT}


class Bmv2Plane:
    """Implements `p4.plane.Plane`. Loads the program, which makes all its state fresh. Raises `DriverError`."""

    def __init__(
        self,
        build: Build,
        p4runtime: str,
        *,
        device: int = 0,
        thrift: str | None = None,
        access: Access | None = None,
    ) -> None:
        """``p4runtime``, ``thrift``: host:port."""
        self._names = P4Names(read_p4info(build.p4info))
        try:
            config = build.program()
        except OSError as error:
            raise DriverError(f"cannot read {build.config}: {error.strerror}") from None
        self._client = Client(p4runtime, device, access=access)
        self._registers: Registers | None = None
        try:
            if thrift is not None:
                self._registers = Registers(thrift)
            self._client.set_program(self._names.info, config)
        except BaseException:
            self.close()
            raise

    def write(self, updates: Sequence[Update]) -> None:
        for part in batches(updates):
            try:
                self._client.write([self._update(update) for update in part])
            except WriteFailed as failed:
                if any(not isinstance(part[index], Delete) or code != GONE for index, code, _ in failed.failures):
                    raise

    def _update(self, update: Update) -> pb.Update:
        kind = pb.Update.DELETE if isinstance(update, Delete) else pb.Update.INSERT
        return pb.Update(type=kind, entity=self._names.entity(update.what))

    def counts(self, cells: Sequence[Cell]) -> Mapping[Cell, Count]:
        found = dict(self._names.count(entity) for entity in self._client.read(list(map(self._names.counter, cells))))
        missing = [cell for cell in cells if cell not in found]
        if missing:
            raise DriverError(f"{self._client.target} did not tell counter {missing[0].counter}[{missing[0].offset}]")
        return found

    def slots(self, first: int, count: int) -> list[SlotState] | None:
        if self._registers is None:
            return None
        columns = [self._registers.read(f"slot_{name}")[first : first + count] for name in SlotState._fields]
        return [SlotState(*row) for row in zip(*columns, strict=True)]

    @property
    def sentinels(self) -> tuple[int, ...]:
        return (self._client.sentinel,)

    def died(self) -> str | None:
        return self._client.died()

    def close(self) -> None:
        if self._registers is not None:
            self._registers.close()
        self._client.close()


def bmv2_driver(
    build: Build,
    network: Network,
    p4runtime: str,
    *,
    device: int = 0,
    thrift: str | None = None,
    access: Access | None = None,
) -> P4Driver:
    """A bmv2 switch, given the program of ``build``, as a driver. Raises `DriverError`."""
    plane = Bmv2Plane(build, p4runtime, device=device, thrift=thrift, access=access)
    try:
        return P4Driver(plane, build, network, name="bmv2", program=BY_ROLE[build.role])
    except BaseException:
        plane.close()
        raise
