"""An open page of a live view, but for the drawing: it asks what there is, again and again."""

from __future__ import annotations

import json
import threading
import urllib.request
from types import TracebackType
from typing import Final, Self

EVERY_S: Final = 0.5
"""Twice as often as a page."""


class Reader:
    """Asks from when the context is entered to its end. Raises what went wrong at the end."""

    def __init__(self, url: str) -> None:
        """``url``: of the page."""
        self._url = url
        self._ended = threading.Event()
        self._error: Exception | None = None
        self.answers = 0
        self._thread = threading.Thread(target=self._read, name="inagg-reader", daemon=True)

    def _read(self) -> None:
        run, look, event = "", 0, 0
        try:
            while True:
                query = f"run={run}&look={look}&event={event}"
                with urllib.request.urlopen(f"{self._url}api/live?{query}", timeout=10) as reply:
                    said = json.load(reply)
                run, look, event = said["run"], said["look"], said["event"]
                self.answers += 1
                if self._ended.wait(EVERY_S):
                    return
        except Exception as error:
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
