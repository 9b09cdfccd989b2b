"""Coming back to the network, while the inner group sums."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from inagg_host.config import ConfigError
from inagg_host.errors import AllReduceError

from .network import Network

log = logging.getLogger("inagg")

RETRY_S = 1.0
"""How long to wait between two attempts."""


class Reconnector:
    """One rank's attempts, on a thread of their own, from `start` to `stop`. ``join``: see `Fallback`."""

    def __init__(self, join: Callable[[threading.Event], Network], rank: int) -> None:
        self._join, self._rank = join, rank
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
            log.warning("rank %d stays on the inner group: %s", self._rank, error)
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
        while not self._stop.wait(RETRY_S):
            try:
                network = self._join(self._stop)
            except (AllReduceError, ConfigError) as error:  # such as a certificate that is just being renewed
                log.debug("not back yet: %s", error)
                continue
            with self._lock:
                if not self._stop.is_set():
                    self._network = network
                    return
            network.close()
            return
