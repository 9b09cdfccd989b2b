"""Options that the commands of the testbed share, and what they mean to the switch."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from inagg.extras import require
from inagg_switch.cli.new_files import NewFile
from inagg_switch.cli.sections import PROBABILITY, Whole, all_of
from inagg_switch.text import count_text
from inagg_testbed.option_types import LinkRate
from inagg_testbed.topology import TARGETS, target_entry
from inagg_testbed.topology.link import UNSHAPED
from inagg_testbed.topology.opening import RACKS_MAX, WORKERS_MAX
from inagg_wire.formats import CHILDREN_MAX, FORMATS

from .web import web_option


@dataclass(frozen=True, slots=True)
class Setup:
    """A testbed as the command line asks for it."""

    workers: int
    link: str | None
    target: str
    faults: dict[str, float]
    """Probabilities by the name of their option."""
    fault_seed: int | None
    """None: no faults."""
    record: Path | None = None
    format: str | None = None
    """Format of the jobs, for the scripts' environment and, where a switch serves one format only, for the switch."""
    racks: int = 0
    trunk: str | None = None
    """The rate of each rack's way to the switch; None: that of a worker's link."""
    web: str | None = None
    """Address of the live view, host:port."""

    @classmethod
    def of(
        cls,
        workers: int,
        link: str | None,
        target: str,
        fault_seed: int | None,
        record: Path | None,
        format: str | None,
        racks: int = 0,
        trunk: str | None = None,
        web: str | None = None,
        **faults: float,
    ) -> Setup:
        """From options. Draws a seed for the faults if there are some and none is given."""
        wanted = {name: share for name, share in faults.items() if share}
        for name in (*wanted, *(["record"] if record is not None else [])):
            if not target_entry(target).ours:
                raise click.UsageError(
                    f"--{name} is not for --target {target}: only our software switch harms or records datagrams"
                )
        check_place(workers, link, racks, trunk, target)
        if fault_seed is not None and not wanted:
            raise click.UsageError(
                "--fault-seed has nothing to seed: give --loss, --duplicate, --reorder or --corrupt too"
            )
        if wanted and fault_seed is None:
            fault_seed = secrets.randbits(32)
        if link is None and target_entry(target).needs_link:
            link = UNSHAPED
        if link is not None:
            require("pyroute2")
        path = None if record is None else record.absolute()
        return cls(workers, link, target, wanted, fault_seed, path, format, racks, trunk, web)

    def switch_options(self) -> list[str]:
        """Return the target's options, as `inagg switch` spells them."""
        options = [word for name, share in self.faults.items() for word in (f"--{name}", str(share))]
        if self.fault_seed is not None:
            options += ["--fault-seed", str(self.fault_seed)]
        if self.record is not None:
            options += ["--record", str(self.record)]
        if self.target == "bmv2" and self.format is not None:
            from inagg_testbed.bmv2 import program_for

            options += ["--program", program_for(self.format)]
        return options

    def as_json(self) -> str:
        """Return JSON for `from_json`, in another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Setup:
        """Read what `as_json` gave."""
        found: dict[str, Any] = json.loads(text)
        return cls(**found | {"record": found["record"] and Path(found["record"])})

    def rank_environment(self) -> dict[str, str]:
        """Return more variables for the scripts."""
        return {} if self.format is None else {"INAGG_FORMAT": self.format}

    def describe(self) -> str:
        """One line for people."""
        text = f"{count_text(self.workers, 'worker')} {places(self.link, self.racks, self.trunk)}, target {self.target}"
        text += f", {self.format}" if self.format is not None else ""
        if self.faults:
            shares = ", ".join(f"{name} {share:g}" for name, share in self.faults.items())
            text += f", faults at the switch, each way: {shares} (--fault-seed {self.fault_seed})"
        return text


place_options: Final = all_of(
    click.option(
        "--link",
        type=LinkRate(),
        metavar="RATE",
        help="Give each worker a link of this rate, such as 1gbit or 100mbit, in a network namespace of its "
        "own (none: unshaped). Needs root.  [default: loopback, no root]",
    ),
    click.option(
        "--racks",
        default=0,
        type=Whole(0, RACKS_MAX),
        metavar="N",
        help="Put the workers into N racks, each with a switch of its own below the one in the middle.",
    ),
    click.option(
        "--trunk",
        type=LinkRate(),
        metavar="RATE",
        help="Rate of each rack's link to the switch in the middle.  [default: as --link]",
    ),
)
"""Where workers are: what `check_place` looks at."""


def check_place(workers: int, link: str | None, racks: int, trunk: str | None, target: str) -> None:
    """Raises click.UsageError for options that do not fit together."""
    if racks and target != "software":
        raise click.UsageError(f"--racks is not for --target {target}: its leaves are software switches")
    if workers > CHILDREN_MAX * max(1, racks):
        raise click.UsageError(f"{workers} workers: one switch serves 1 to {CHILDREN_MAX}; put them into --racks")
    if racks > workers:
        raise click.UsageError(f"{racks} racks for {workers} workers: each needs one")
    if trunk is not None and (not racks or link is None):
        lacks = " and ".join(option for option, there in (("--racks", racks), ("--link", link)) if not there)
        raise click.UsageError(f"--trunk is the link of each rack to the switch: give {lacks} too")


def places(link: str | None, racks: int, trunk: str | None) -> str:
    """The same in words."""
    links = "over loopback" if link is None else f"with links of {link}"
    if link == UNSHAPED:
        links = "with unshaped links"
    if racks:
        links += f", in {racks} racks" + (f" behind trunks of {trunk}" if trunk else "")
    return links


setup_options: Final = all_of(
    click.option(
        "--workers",
        default=4,
        show_default=True,
        type=Whole(1, WORKERS_MAX),
        help="How many; up to 32 a rack.",
    ),
    place_options,
    click.option(
        "--target",
        default="software",
        show_default=True,
        type=click.Choice(list(TARGETS)),
        help="What stands in the middle.",
    ),
    click.option(
        "--format",
        type=click.Choice(list(FORMATS)),
        metavar="NAME",
        help="INAGG_FORMAT for the scripts, nat4 for example; a bmv2 switch gets the program for it.",
    ),
    click.option("--loss", default=0.0, type=PROBABILITY, metavar="P", help="A datagram is lost, in either direction."),
    click.option("--duplicate", default=0.0, type=PROBABILITY, metavar="P", help="A datagram comes twice."),
    click.option("--reorder", default=0.0, type=PROBABILITY, metavar="P", help="Others overtake it."),
    click.option("--corrupt", default=0.0, type=PROBABILITY, metavar="P", help="A bit flips: it is dropped."),
    click.option(
        "--fault-seed",
        type=Whole(0, (1 << 32) - 1),
        metavar="N",
        help="Repeat the faults of a run.  [default: drawn, and told]",
    ),
    click.option(
        "--record",
        type=NewFile(),
        metavar="FILE",
        help="Keep what the switch took in and gave out, and all seeds, for `inagg replay FILE`; "
        "compressed if FILE ends with .gz.",
    ),
    web_option,
)
"""The options that `Setup.of` takes."""
