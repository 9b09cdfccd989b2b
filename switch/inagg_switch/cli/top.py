"""`inagg top`: the traffic of a switch and its jobs, live on a terminal, as lines elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from inagg_proto.v1.control_pb2 import StatsResponse

from ..service.control_client import ControlCallError, ControlClient
from ..service.rates import Rates, as_plain, rates
from .outage import Outage
from .terminal_tables import console
from .top_tables import tables
from .words import number_text


def show_top(client: ControlClient, *, job: str, as_json: bool, once: bool, interval_s: float, count: int) -> None:
    """Show rates every ``interval_s`` seconds: ``count`` times, 0: until Ctrl-C. ``once``: as tables, one time.
    ``as_json``: a line each; `time_s` is the Unix time, while `at_s` is the switch's own clock."""
    out = console()
    looks = _looks(client, job, interval_s, 1 if once else count)
    try:
        if as_json:
            for look in looks:
                print(json.dumps({"time_s": round(time.time(), 3), **as_plain(look)}), flush=True)
        elif once:
            for look in looks:
                out.print(tables(look, client.address, columns=out.width))
        elif out.is_terminal:
            _live(out, client, job, interval_s, count)
        else:
            for look in looks:
                print(line(look), flush=True)
    except KeyboardInterrupt:
        if once or count:
            raise  # it was to come to its end, and did not


def _looks(client: ControlClient, job: str, interval_s: float, count: int) -> Iterator[Rates]:
    """Rates over one interval each, ``count`` times, 0: without end, and then a switch that does not answer any more is
    asked again and again."""
    before: StatsResponse | None = client.stats(job)
    left, outage = count, Outage()
    while True:
        time.sleep(interval_s)
        try:
            now = client.stats(job)
        except ControlCallError as error:
            if count:
                raise
            outage.missed(error)
            before = None
            continue
        outage.over()
        if before is None:  # what is known from before the outage is of another run, or of another interval
            before = now
            continue
        yield rates(before, now)
        before = now
        left -= 1
        if left == 0:
            return


def _live(out: Console, client: ControlClient, job: str, interval_s: float, count: int) -> None:
    """Redraw the tables in place; the last picture stays. A switch that does not answer any more is asked again and
    again."""
    before = client.stats(job)
    shown: RenderableType = tables(rates(None, before), client.address, out.height, out.width)
    left, outage = count, Outage()
    try:
        with Live(shown, console=out, screen=True, auto_refresh=False) as live:
            live.refresh()
            while True:
                time.sleep(interval_s)
                try:
                    now = client.stats(job)
                except ControlCallError as error:
                    outage.missed(error, quiet=True)
                    live.update(Group(Text(f"{error}\nTrying again.", style="red"), Text(), shown), refresh=True)
                    continue
                outage.over()
                shown = tables(rates(before, now), client.address, out.height, out.width)
                live.update(shown, refresh=True)
                before = now
                left -= 1
                if left == 0:
                    return
    finally:
        out.print(shown)


def line(look: Rates) -> str:
    """One line of `name=value`, for logs and what reads them: plain numbers; names say the units, and ``per_s`` what
    is a rate over the interval."""
    shards, jobs = look.shards, look.jobs
    drops = sum(rate for _, _, rate in look.drops)
    values = {
        "time": time.strftime("%H:%M:%S"),
        "jobs": len(jobs),
        "elements_per_s": number_text(sum(job.elements for job in jobs)),
        "results_per_s": number_text(sum(job.results for job in jobs)),
        "bits_in_per_s": number_text(sum(shard.bits_in for shard in shards)),
        "bits_out_per_s": number_text(sum(shard.bits_out for shard in shards)),
        "packets_in_per_s": number_text(sum(shard.datagrams_in for shard in shards)),
        "packets_out_per_s": number_text(sum(shard.datagrams_out for shard in shards)),
        "cpu_percent": f"{100 * sum(shard.cpu for shard in shards):.0f}",
        "duplicates_per_s": number_text(sum(job.duplicates for job in jobs)),
        "resends_per_s": number_text(sum(job.resends for job in jobs)),
        "stale_per_s": number_text(sum(job.stale for job in jobs)),
        "partials_per_s": number_text(sum(trunk.partials for job in jobs for trunk in job.trunks)),
        "partials_again_per_s": number_text(sum(trunk.partials_again for job in jobs for trunk in job.trunks)),
        "drops_per_s": number_text(drops),
        "kernel_drops_per_s": number_text(sum(shard.kernel_drops for shard in shards)),
        "slots_leased": sum(shard.now.slots_leased for shard in shards),
        "slots_waiting": sum(job.now.slots_waiting for job in jobs),
    }
    return " ".join(f"{name}={value}" for name, value in values.items())
