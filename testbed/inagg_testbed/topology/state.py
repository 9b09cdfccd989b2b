"""Testbeds that there are: a file for each, written before anything is made and removed when all is gone.

So what a killed testbed has left behind is known to be ours, and nothing else is ever touched.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .base import TopologyError
from .processes import Process

SYSTEM = Path("/run/inagg")
PREFIX = "inagg-"
"""Prefix of the names of all our network namespaces."""
NO_TEMPORARY = "no folder for temporary files can be written: mount something on /tmp, or set TMPDIR"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}")


def folder() -> Path:
    """Where the files are: of the system for root, of the user for others; among temporary files where there is no such
    place (a container that is read-only), or it is somebody else's (su). Raises `TopologyError`."""
    for path in _places():
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            break
        except OSError as error:
            why = f"cannot keep what testbeds there are in {path}: {error.strerror}"
    else:
        raise TopologyError(why)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise TopologyError(f"{path} should be a folder of yours and is not: remove it")
    return path


def _places() -> Iterator[Path]:
    """Where the folder may be, the best first. Raises `TopologyError`."""
    if os.geteuid() == 0:
        yield SYSTEM
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "inagg"
    try:
        yield Path(tempfile.gettempdir()) / f"inagg-{os.geteuid()}"
    except OSError:
        raise TopologyError(f"cannot keep what testbeds there are: {NO_TEMPORARY}") from None


def others_hidden() -> bool:
    """Whether root may have testbeds that this user does not see."""
    return os.geteuid() != 0 and SYSTEM.exists()


def check_name(name: str) -> str:
    """The name, if a testbed may have it. Raises `TopologyError`."""
    if not _NAME.fullmatch(name):
        raise TopologyError(f"{name!r} cannot name a testbed: use up to 41 letters, digits, '-', '_' or '.'")
    return name


@dataclass(frozen=True, slots=True)
class State:
    """One testbed."""

    name: str
    mark: str
    """In the environment of its processes."""
    owner_pid: int
    owner_started: int
    """The process that made it (see `Process`) and removes it when it ends."""
    namespaces: tuple[str, ...]
    about: dict[str, Any]
    """How it was made, for `status` and for those who use it later."""

    @classmethod
    def new(cls, name: str, namespaces: tuple[str, ...], about: dict[str, Any]) -> State:
        """Return the state of a testbed that this process makes."""
        owner = Process.of(os.getpid())
        assert owner is not None
        mark = f"{name}-{secrets.token_hex(8)}"
        return cls(check_name(name), mark, owner.pid, owner.started, namespaces, about)

    @property
    def path(self) -> Path:
        """Its file."""
        return folder() / f"{self.name}.json"

    @property
    def owner(self) -> Process:
        """The process that made it."""
        return Process(self.owner_pid, self.owner_started)

    @property
    def left_over(self) -> bool:
        """Whether nobody will remove it but `inagg testbed down`: its owner was killed."""
        return not self.owner.alive

    def telling(self, **more: Any) -> State:
        """The same with ``more`` in what it is about."""
        return replace(self, about={**self.about, **more})

    def save(self, *, new: bool = False) -> None:
        """Write the file. Raises `TopologyError` if it is ``new`` and there is one."""
        temporary = folder() / f".{self.name}.{os.getpid()}"
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n")
        try:
            if new:
                os.link(temporary, self.path)  # unlike a rename it fails if somebody else was first
            else:
                os.replace(temporary, self.path)
        except FileExistsError:
            raise TopologyError(
                f"there is a testbed {self.name!r} already. See it: inagg testbed status. "
                f"Remove it: inagg testbed down --name {self.name}"
            ) from None
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()

    def forget(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            self.path.unlink()


def load(name: str) -> State | None:
    """The testbed of this name. Raises `TopologyError` if its file cannot be understood."""
    path = folder() / f"{check_name(name)}.json"
    try:
        fields = json.loads(path.read_text())
        return State(**{**fields, "namespaces": tuple(fields["namespaces"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise TopologyError(f"{path} is not the file of a testbed: remove it") from None


def all_states() -> Iterator[State]:
    """Every testbed that there is, by name. Raises `TopologyError`."""
    for path in sorted(folder().glob("*.json")):
        state = load(path.stem)
        if state is not None:
            yield state
