"""The command `inagg`, which `python -m inagg` runs, too.

Scripts import from `inagg_host` (numpy) or `inagg_host.torch`; `init_process_group("inagg")` needs no import at all.
"""


def __getattr__(name: str) -> object:
    raise AttributeError(f"inagg has no {name}: it is the command. Scripts import from inagg_host or inagg_host.torch")
