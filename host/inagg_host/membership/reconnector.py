"""Coming back to the network, while the inner group sums: ranks join again, and try whether something passes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from inagg_host.config import ConfigError
from inagg_host.errors import AllReduceError
from inagg_host.task import make_max_task

from .network import Network
from .reachability import where_text

log = logging.getLogger("inagg")

RETRY_S = 1.0
"""How long to wait between two attempts to join."""
TRIAL_S: Final = 10.0
"""How long the first operation of a new network may take. All ranks have joined, and each begins with that: a switch
answers in milliseconds, and lost datagrams are sent again after a quarter of a second at most (`RTO_MAX_S`)."""
TRIALS_AFTER_MOST_S: Final = 60.0
"""The longest pause after a trial in vain; it doubles each time."""
TRIAL_POLL_S: Final = 0.002


class Reconnector:
    """One rank's attempts, on a thread of their own, from `start` to `stop`. ``join``: see `Fallback`."""

    def __init__(self, join: Callable[[threading.Event], Network], who: str) -> None:
        """``who``: `Config.who`."""
        self._join, self._who = join, who
        self._pause_s = RETRY_S
        self._lock = threading.Lock()
        self._network: Network | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Where there are no more threads, this says so, and the rank does not come back."""
        thread = threading.Thread(target=self._run, name="inagg-reconnect", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("%s stays on the inner group: %s", self._who, error)
        else:
            self._thread = thread

    def is_back(self) -> bool:
        """Whether there is a network that works; one that has broken meanwhile is closed, and this begins anew."""
        with self._lock:
            broken = self._network if self._network is not None and self._network.failure is not None else None
            if broken is not None:
                self._network = None
        if broken is not None:
            broken.close()
            self.start()
        return self._network is not None

    def take(self) -> Network | None:
        """The network, which is the caller's then."""
        with self._lock:
            network, self._network = self._network, None
        return network

    def stop(self) -> None:
        """End, and close a network that nobody has taken. No error if called twice."""
        self._stop.set()
        network = self.take()
        if network is not None:
            network.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                network = self._join(self._stop)
            except (AllReduceError, ConfigError) as error:  # such as a certificate that is just being renewed
                log.debug("not back yet: %s", error)
                continue
            if not self._passes(network):
                continue
            with self._lock:
                if not self._stop.is_set():
                    self._network = network
                    return
            network.close()
            return

    def _passes(self, network: Network) -> bool:
        """Whether datagrams pass to all shards and back, and not the control connection alone; else the network is
        closed, and the next pause is longer if that was why."""
        trial = make_max_task(np.zeros(network.engine.scales * len(network.engine.epoch.shards), np.uint8), None)
        until_s = time.monotonic() + TRIAL_S
        network.submit(trial)
        while not trial.work.done() and network.failure is None and time.monotonic() < until_s:
            if self._stop.wait(TRIAL_POLL_S):
                break
        if trial.work.done() and trial.work.exception() is None:
            return True
        if self._stop.is_set() or network.failure is not None:
            log.debug("not back yet: %s", network.failure)
            network.close()
            return False
        where = where_text([shard.address for shard in network.engine.epoch.shards])
        why = f"{self._who} has joined again, and nothing that it sends to {where} is answered"
        log.log(logging.DEBUG if self._pause_s > RETRY_S else logging.WARNING, "%s: the inner group goes on", why)
        network.close(why, end=True)  # so the other ranks need not find it out
        self._pause_s = min(2 * self._pause_s, TRIALS_AFTER_MOST_S)
        return False
