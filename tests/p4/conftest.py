"""Rigs: a P4 switch beside the model, interpreted in the default tier, a real bmv2 in the tier p4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from tests.p4.bmv2.switch import Bmv2

from inagg_switch.p4.builds import build
from inagg_switch.p4.p4_driver import P4Driver

from .rig import Rig, make_network

MakeRig = Callable[[str, Sequence[str]], Rig]


def interpreted_rig(program: str, addresses: Sequence[str]) -> Rig:
    """A rig whose P4 switch is interpreted, with a host for each address."""
    chosen = build(program)
    switch = Bmv2(chosen)
    return Rig(P4Driver(switch, chosen, make_network(addresses), name="interpreter"), switch)


@pytest.fixture(params=["interpreter", pytest.param("bmv2", marks=[pytest.mark.p4, pytest.mark.root])])
def make_rig(request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    """Makes rigs of a program, with a host for each of some addresses; they end with the test."""
    if request.param == "interpreter":
        yield interpreted_rig
        return
    from .wires import real_rig

    with ExitStack() as stack:

        def make(program: str, addresses: Sequence[str]) -> Rig:
            return stack.enter_context(real_rig(build(program), make_network(addresses)))

        yield make
