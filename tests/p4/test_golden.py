"""The compiled programs of 32 lanes, interpreted, against the golden vectors: conversations and results, byte for byte.

`test_builds` plays the same to all programs on a real bmv2.
"""

from __future__ import annotations

import pytest
from tests.vectors.load import Vector, label, vectors

from .conftest import interpreted_rig
from .golden import FLAT_BUILDS, P4_FORMATS, RESULT_WORKERS, add_up, addresses_of, conversations, converse, results

LANES = 32
"""Of the programs here; the vectors have as many or fewer."""
PROGRAMS = {name: build for name, build in FLAT_BUILDS.items() if build.lanes == LANES}
PLAYS = [(name, vector, steps) for name, build in PROGRAMS.items() for vector, steps in conversations(build)]


def test_all_traces_are_played_but_one_beyond_the_slots_of_bmv2() -> None:
    played = [vector["what"] for _, vector, _ in PLAYS]
    assert [vector["what"] for vector in vectors("traces") if vector["what"] not in played] == [
        "32 workers: the bitmap is full with its highest bit; the last slot there is"
    ]


@pytest.mark.parametrize(
    ("program", "steps"),
    [(program, steps) for program, _, steps in PLAYS],
    ids=[f"{program}: {label(vector)}" for program, vector, _ in PLAYS],
)
def test_a_conversation_goes_as_written(program: str, steps: list[Vector]) -> None:
    converse(interpreted_rig(program, addresses_of(steps)), steps)


@pytest.mark.parametrize("name", P4_FORMATS)
def test_contributions_give_the_result(name: str) -> None:
    program = next(program for program, build in PROGRAMS.items() if name in build.formats)
    rig = interpreted_rig(program, [address for address, _ in RESULT_WORKERS])
    for vector in results(name):
        add_up(rig, vector)
