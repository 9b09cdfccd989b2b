"""Defaults of a switch and its commands, for the help of the commands too: so it imports nothing heavy."""

from __future__ import annotations

from typing import Final

from inagg_wire.layout import CONTROL_PORT

ADDRESS: Final = f"127.0.0.1:{CONTROL_PORT}"
"""Address of the control service."""
METRICS_PORT: Final = 47099
WEB_PORT: Final = 47098
"""The usual ports: of metrics, and of the live view."""
METRICS_ADDRESS: Final = f"127.0.0.1:{METRICS_PORT}"
WEB_ADDRESS: Final = f"127.0.0.1:{WEB_PORT}"

DRAIN_S: Final = 20.0
"""Seconds that running jobs may go on after the first signal to stop."""

LOG_FORMATS: Final = ("human", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
"""Log formats and levels to choose from (`logs.configure`); the usual are human and info."""
