"""The error where Numba was told to compile nothing. It stands apart from `jit`, which cannot be imported then."""

from __future__ import annotations


class JitOff(ImportError):
    """Numba is not to compile, and there is no other way; the text says what to do."""


def require_jit() -> None:
    """Raises `JitOff`."""
    import numba  # late: who catches `JitOff` need not wait for it

    if vars(numba.config).get("DISABLE_JIT"):
        raise JitOff("NUMBA_DISABLE_JIT is set, and what inagg computes must be compiled: unset it")
