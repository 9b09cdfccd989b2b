"""The switch's word on who is gone: an inner group fails as soon as a rank is, and names nobody; the switch names it
some seconds later."""

from __future__ import annotations

import time
from collections.abc import Callable

from .errors import AllReduceError

NAMED_S, LOOK_S = 6.0, 0.05
"""How long to wait for the switch's word, and how often to look. A killed process is given up after 2 s and has 2 more
to come back, so the word comes 4.1 to 5 s after its end."""


def wait_for_word(
    failure: Callable[[], AllReduceError | None], until_s: float, listening: Callable[[], bool] = lambda: True
) -> AllReduceError | None:
    """The ``failure`` that the switch's word has made, as soon as there is one; None if there is none by ``until_s``
    (`time.monotonic`), or if none can come since nobody is ``listening``."""
    while True:
        said = failure()
        if said is not None or not listening() or time.monotonic() >= until_s:
            return said
        time.sleep(LOOK_S)
