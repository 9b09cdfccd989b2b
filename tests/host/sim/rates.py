"""How fast the all-reduce is over links of a given rate, by what is lost: in virtual time, the same on all machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from inagg_wire.formats import job_format
from inagg_wire.scale import FloatType

from .network import Weather
from .simulation import Pace, Simulation
from .world import World, make_world

LOSSES = (0.0, 0.001, 0.01, 0.05, 0.2)
DATAGRAM_S = 3.6e-6
"""A datagram of 1472 bytes at 3.3 Gbit/s, about what one rank has of a machine with two cores: 400 M elements/s."""
DELAY_S = 20e-6
BLOCKS, TENSORS, LANES, WINDOW = 3000, 3, 256, 512


@dataclass(frozen=True, slots=True)
class Rate:
    """``blocks_per_s`` at best, ``of_link`` that over the link's rate; ``resent``: share of all contributions."""

    loss: float
    blocks_per_s: float
    of_link: float
    resent: float


@lru_cache(maxsize=2)
def _world(workers: int, blocks: int) -> World:
    # A tiny tensor first, so that the time-out before the first round trip, which a job meets once, does not count.
    tensors = [(1, FloatType.FLOAT32)] + [(blocks * LANES, FloatType.FLOAT32)] * TENSORS
    return make_world(1, job_format("nat8"), workers, LANES, WINDOW, 1, tensors)


def measure(workers: int, weather: Weather, one_by_one: bool, seeds: int, blocks: int = BLOCKS) -> Rate:
    """The rate of ``workers`` ranks, over ``seeds`` runs of tensors of ``blocks``. ``one_by_one``: a tensor only when
    the last is done."""
    world, time_s, resent, sent = _world(workers, blocks), 0.0, 0, 0
    for seed in range(seeds):
        simulation = Simulation(world, weather, seed, Pace(one_by_one=one_by_one))
        outcome = simulation.run()
        time_s += outcome.done_s[-1] - outcome.done_s[0]
        resent, sent = resent + outcome.resent, sent + outcome.contributions
    per_s = seeds * sum(tensor.blocks for tensor in world.tensors[1:]) / time_s
    return Rate(weather.lost, per_s, per_s * weather.datagram_s * weather.sharers, resent / sent)


def rates(workers: int, one_by_one: bool, seeds: int = 4, losses: tuple[float, ...] = LOSSES) -> Iterator[Rate]:
    """By loss."""
    for loss in losses:
        weather = Weather(lost=loss, delay_s=DELAY_S, datagram_s=DATAGRAM_S)
        yield measure(workers, weather, one_by_one, seeds if loss else 1)


def print_rates() -> None:
    """A table."""
    print(f"nat8, window {WINDOW}, {TENSORS} tensors of {BLOCKS} blocks, {DATAGRAM_S * 1e6:.1f} us a datagram,")
    print(f"{DELAY_S * 1e6:.0f} us each way; loss on every link, up and down\n")
    print("ranks  tensors      loss   blocks/s   of link   of lossless   resent")
    for workers in (2, 4, 8):
        for one_by_one in (True, False):
            calm = 0.0
            for rate in rates(workers, one_by_one):
                calm = calm or rate.blocks_per_s
                how = "one by one" if one_by_one else "all at once"
                share = rate.blocks_per_s / calm
                print(
                    f"{workers:5}  {how:11} {rate.loss:6.1%} {rate.blocks_per_s:10.0f} {rate.of_link:9.0%} "
                    f"{share:13.0%} {rate.resent:8.1%}",
                    flush=True,
                )
