"""Bytes of an element on the wire, counted in the packets of two ranks on a real switch, as Markdown.

python -m tests.host.compress.packets
"""

from __future__ import annotations

import argparse
import logging

import structlog
from tests.host.compress.ranks import Rank, gradients, ranks_on
from tests.switch.background import BackgroundServer

from inagg_host.compress import Aggregation, parse
from inagg_switch.service.server import ControlServer
from inagg_switch.software.software_driver import SoftwareDriver

WAYS = [
    ("natural", "nat8"),
    ("dithering:p=inf,s=127,shared=true", "dith8"),
    ("dithering:p=inf,s=127,shared=true", "dith8-exact"),
    ("natural_dithering:p=inf,s=7,shared=true", "nat4"),
    ("terngrad", "tern"),
    ("randk:k=0.01", "nat8"),
    ("randk:k=0.01", "fix32"),
    ("ultrasparse:k=0.5", "nat8"),
    ("blocktopk:k=0.01", "nat8"),
    ("natural+randk:k=0.01", "nat8"),
    ("topk:k=0.01", "nat8"),
    ("qsgd:s=7", "nat8"),
    ("natural_dithering:s=7", "nat8"),
    ("terngrad:scaler=own", "nat8"),
    ("natural+topk:k=0.01", "nat8"),
]


def measure(switch: str, text: str, fmt: str, elements: int) -> tuple[float, float, float]:
    """Bytes of one element that a rank sends to the switch and gets from it, and that it gives to the gather."""
    with ranks_on(switch, 2, fmt) as ranks:

        def run(rank: Rank) -> None:
            rank.reduce(parse(text), *gradients(rank.rank, 0, elements))

        ranks.run(run)
        counters, counts = ranks[0].all_reduce.counters, ranks[0].exchange.counts
        once = (counters.datagrams_out - counters.resent) / max(counters.datagrams_out, 1)
        return counters.bytes_out * once / elements, counters.bytes_in / elements, counts["gathered-bytes"] / elements


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--elements", type=int, default=1_000_000, help="of the vector (default %(default)s)")
    elements = options.parse_args().elements
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    driver = SoftwareDriver()
    print("| compressor | format | to the switch | from the switch | gathered, each |\n|---|---|---|---|---|")
    try:
        with BackgroundServer(ControlServer(driver, "127.0.0.1:0")) as server:
            for text, fmt in WAYS:
                up, down, gathered = measure(server.address, text, fmt, elements)
                if parse(text).aggregation is Aggregation.GATHER:
                    print(f"| `{text}` | - | - | - | {gathered:.4f} |")
                else:
                    print(f"| `{text}` | {fmt} | {up:.4f} | {down:.4f} | - |")
    finally:
        driver.close()


if __name__ == "__main__":
    main()
