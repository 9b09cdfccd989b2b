"""`inagg switch`, from the first line to the last.

Exit status: 0 when it was told to stop (Ctrl-C or SIGTERM, however many), 1 if it could not start, or if a shard died
and could not be started again.
"""

from __future__ import annotations

import structlog

from ..service.descriptors import raise_limit, why_too_few
from ..software.shard_process import ShardProcess, end_shards, start_shards
from .log_writer import log_on_thread
from .ready_file import claim, remove_own
from .settings import Settings
from .signals import EXIT_STOPPED, Stopped, signals_raise

log = structlog.get_logger("inagg.switch")


def serve(settings: Settings) -> int:
    """Run a switch until it is told to stop, or has lost a shard; the exit status. Raises `run.CannotServe`."""
    taken = claim(settings.ready_file) if settings.ready_file is not None else None
    too_few = why_too_few(raise_limit(), 0 if settings.p4 is not None else settings.software.shards)
    why_not = taken or too_few
    shards: list[ShardProcess] = []
    with signals_raise(), log_on_thread():
        try:
            if settings.p4 is None and why_not is None:
                shards = start_shards(settings.software)
            from .run import CannotServe, run  # while the shards start: gRPC and the rest take half as long

            try:
                if why_not is not None:
                    raise CannotServe(why_not)
                return run(settings, shards)
            except CannotServe as error:
                if settings.announce:
                    raise
                log.error("switch_failed", why=error.message)  # for who reads JSON
                return error.exit_code
        except Stopped:
            log.info("switch_stopped", before="it served")
            return EXIT_STOPPED
        finally:
            end_shards(shards)
            if settings.ready_file is not None:
                remove_own(settings.ready_file)
