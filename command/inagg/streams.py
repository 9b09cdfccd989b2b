"""Standard input, output and error as every command may expect them: all three are there, and take any text."""

from __future__ import annotations

import io
import os
import sys


def make_sound() -> None:
    """Put /dev/null where one was closed (``>&-``): else Python has none, and the next file or socket that is opened
    gets its number, with all that anybody writes to it. What the locale has no character for is written as an escape:
    names, reasons and paths come from elsewhere, and must not end the command that shows them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (for as long as we run)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
