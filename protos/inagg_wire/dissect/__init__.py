"""Datagrams for people to look at: a scapy layer, and a dissector for Wireshark. Both derive from `layout`."""

from __future__ import annotations

from typing import Final

DATA_PORT: Final = 5511
"""The UDP port that dissectors take for inagg unless told otherwise. Real ports come from the control service."""
