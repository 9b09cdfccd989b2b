"""Checks of what is installed: Python, inagg and what it needs, PyTorch and what it can use; and what is compiled."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

from inagg.extras import install
from inagg_wire.variables import misspelt

from .. import cache
from .finding import Finding, Verdict

PYTHON_LEAST: Final = (3, 11)
TORCH_LEAST: Final = (2, 7)
WHAT_FOR: Final = {
    "matplotlib": "reports", "scapy": "captures in tests", "pyroute2": "links (--link)", "sklearn": "the demo"
}  # fmt: skip


def check_python() -> Iterator[Finding]:
    """Python, and this package."""
    version = platform.python_version()
    if sys.version_info < PYTHON_LEAST:
        yield Finding("python", Verdict.WRONG, f"{version}; 3.11 is the oldest that works", "install Python 3.11")
    else:
        yield Finding("python", Verdict.OK, f"{version}, {sys.executable}")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numba", "numpy", "grpcio"))
    yield Finding("inagg", Verdict.OK, f"{importlib.metadata.version('inagg')}; {versions}")


def check_torch() -> Iterator[Finding]:
    """PyTorch, and whether kernels for GPUs can run."""
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", Verdict.NOTE, "not installed: a switch needs none", install("torch"))
        return
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", Verdict.WRONG, f"it cannot be imported: {error}", "pip install --force-reinstall torch")
        return
    version = torch.__version__
    if tuple(int(part) for part in version.split(".")[:2]) < TORCH_LEAST:
        yield Finding("torch", Verdict.WRONG, f"{version}; 2.7 is the oldest that works", "pip install -U torch")
    else:
        yield Finding("torch", Verdict.OK, version)
    if torch.version.hip:
        found = f"ROCm {torch.version.hip}: the inner group sums tensors on GPUs; the switch, those on the CPU"
        yield Finding("gpu", Verdict.NOTE, found)
    elif not torch.version.cuda:
        yield Finding("gpu", Verdict.NOTE, "this PyTorch is built without CUDA: tensors are on the CPU")
    elif not torch.cuda.is_available():
        yield Finding("gpu", Verdict.NOTE, f"CUDA {torch.version.cuda}, and no GPU that can be used", "nvidia-smi")
    elif importlib.util.find_spec("triton") is None:
        found = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, but no Triton: the CPU encodes"
        yield Finding("gpu", Verdict.SLOW, found, "pip install triton")
    else:
        from inagg_host.torch.gpu.platform import lacking

        triton = importlib.metadata.version("triton")
        found = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, Triton {triton}"
        if missing := lacking():
            found += f", but no {' and no '.join(missing)}, which it needs: the CPU encodes, unless kernels are kept"
            yield Finding("gpu", Verdict.SLOW, found, f"apt-get install {' '.join(missing.values())}")
        else:
            found += ", with the C compiler and Python.h that it needs (no kernel was compiled to see)"
            yield Finding("gpu", Verdict.OK, found)


def check_extras() -> Iterator[Finding]:
    """Check what else some commands need."""
    for module, what in WHAT_FOR.items():
        if importlib.util.find_spec(module) is None:
            yield Finding(module, Verdict.NOTE, f"not installed: for {what}", install(module))


def check_compiled() -> Iterator[Finding]:
    """Where compiled code is kept, and how much of it the next start would use."""
    from inagg_link.first_start import is_temporary
    from inagg_link.jit_off import JitOff, require_jit
    from inagg_link.kept_code import can_write, describe, place, usable

    try:
        require_jit()
    except JitOff as error:
        yield Finding("compiled code", Verdict.WRONG, str(error), "unset NUMBA_DISABLE_JIT")
        return
    kept, found = place(), usable()
    if is_temporary(kept) and not found.keys() - {kept}:
        text = f"only {kept} can be written, which does not last"
        yield Finding("compiled code", Verdict.SLOW, text, "export NUMBA_CACHE_DIR=/a/folder/that/lasts")
    elif found:
        text = " and ".join(f"{count} functions are kept in {describe(folder)}" for folder, count in found.items())
        yield Finding("compiled code", Verdict.OK, text)
    elif not can_write(kept):
        text = f"none of these sources is kept, and {describe(kept)} cannot be written: each start compiles"
        yield Finding("compiled code", Verdict.SLOW, text, "export NUMBA_CACHE_DIR=/a/folder/that/lasts")
    else:
        text = f"none of these sources in {describe(kept)}: the first start compiles for half a minute"
        yield Finding("compiled code", Verdict.NOTE, text, "inagg warmup")


def check_temporary() -> Iterator[Finding]:
    """Whether there is a folder for temporary files, which testbeds need."""
    try:
        tempfile.gettempdir()
    except OSError:
        found = "no folder for temporary files can be written"
        yield Finding("temporary files", Verdict.WRONG, found, "mount something on /tmp, or export TMPDIR=/a/folder")


def check_kept() -> Iterator[Finding]:
    """Whether a calibration can be kept."""
    folder = cache.folder()
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if os.path.isdir(nearest) and os.access(nearest, os.W_OK):
        yield Finding("kept measurements", Verdict.OK, str(folder))
    else:
        found = f"{folder} cannot be written: `inagg advise` measures anew each time"
        yield Finding("kept measurements", Verdict.SLOW, found, "export XDG_CACHE_HOME=/a/folder/that/lasts")


def check_variables() -> Iterator[Finding]:
    """Variables that nobody reads."""
    for sentence in misspelt(os.environ):
        name, _, near = sentence.removeprefix("the variable ").partition(" is not read: did you mean ")
        yield Finding("environment", Verdict.WRONG, sentence, f"export {near.rstrip('?')}=...; unset {name}")
