"""Rigs: a P4 switch beside the model, interpreted in the default tier, a real bmv2 in the tier p4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol

import pytest
from tests.p4.bmv2.switch import Bmv2

from inagg_switch.p4.bmv2.bmv2_plane import BY_ROLE
from inagg_switch.p4.builds import build
from inagg_switch.p4.p4_driver import P4Driver

from .rig import SWITCH_ADDRESS, Rig, make_network


class MakeRig(Protocol):
    """Makes a rig of a program, with a host for each of some addresses."""

    def __call__(self, program: str, addresses: Sequence[str], switch: str = SWITCH_ADDRESS) -> Rig: ...


def interpreted_rig(program: str, addresses: Sequence[str], switch: str = SWITCH_ADDRESS) -> Rig:
    """A rig whose P4 switch is interpreted, with a host for each address."""
    chosen = build(program)
    plane = Bmv2(chosen)
    network = make_network(addresses, switch=switch)
    return Rig(P4Driver(plane, chosen, network, name="interpreter", program=BY_ROLE[chosen.role]), plane)


@pytest.fixture(params=["interpreter", pytest.param("bmv2", marks=[pytest.mark.p4, pytest.mark.root])])
def make_rig(request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    """Makes rigs of a program, with a host for each of some addresses; they end with the test."""
    if request.param == "interpreter":
        yield interpreted_rig
        return
    from .wires import real_rig

    with ExitStack() as stack:

        def make(program: str, addresses: Sequence[str], switch: str = SWITCH_ADDRESS) -> Rig:
            return stack.enter_context(real_rig(build(program), make_network(addresses, switch=switch)))

        yield make
