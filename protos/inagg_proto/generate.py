"""Generates the code of the control service, P4Runtime and BF Runtime: ``python -m inagg_proto.generate [--check]``.

The generator's version decides which runtimes load the code (see `inagg_proto`), so it is pinned here and made
available in a temporary environment (by pip) where another version is installed. ``--check`` works with any: it
generates in a temporary folder, sets aside in what generators are known to differ, and compares.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SOURCE_ROOT: Final = Path(__file__).resolve().parents[1]
PROTO: Final = "inagg_proto/v1/control.proto"
P4RUNTIME: Final = "inagg_proto/p4runtime/v1/p4runtime.proto"
"""Messages only: the calls have the names of the specification's own package (`inagg_proto.p4runtime`)."""
BFRUNTIME: Final = "inagg_proto/bfruntime/v1/bfruntime.proto"
"""Messages only, likewise (`inagg_proto.bfruntime`)."""
GENERATED: Final = (
    *(f"inagg_proto/v1/control_pb2{suffix}" for suffix in (".py", ".pyi", "_grpc.py", "_grpc.pyi")),
    *(f"inagg_proto/p4runtime/v1/p4runtime_pb2{suffix}" for suffix in (".py", ".pyi")),
    *(f"inagg_proto/bfruntime/v1/bfruntime_pb2{suffix}" for suffix in (".py", ".pyi")),
)

TOOLS: Final = {"grpcio-tools": "1.74.0", "mypy-protobuf": "5.1.0"}
"""The generators: messages and stubs by the first, their type stubs by the second."""

NEUTRAL: Final = (
    (re.compile(r"^# Protobuf Python Version: .*$", re.M), ""),
    (re.compile(r"(Domain\.PUBLIC,\s+)\d+,\s+\d+,\s+\d+,\s+'[^']*'"), r"\1"),
    (re.compile(r"^GRPC_GENERATED_VERSION = .*$", re.M), ""),
    (re.compile(r"^(class \w+)\(object\):", re.M), r"\1:"),
    (re.compile(r"^(\s+\+ )f(' but the generated code)", re.M), r"\1\2"),
)
"""Parts in which generators of different versions differ though the .proto is the same: their version, and style."""


class GenerateError(RuntimeError):
    """The code could not be generated; the text is what the generator said."""


def generate(output: Path, python: Path = Path(sys.executable)) -> None:
    """Write the generated files below ``output``, with the generators that ``python`` has.

    Raises `GenerateError`.
    """
    command = [
        str(python),
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={SOURCE_ROOT}",
        f"--python_out={output}",
        f"--mypy_out={output}",
    ]
    # protoc looks for the plugins of mypy-protobuf on PATH, which names the environment only if it was activated.
    path = os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath)))
    services = (f"--grpc_python_out={output}", f"--mypy_grpc_out={output}")
    for arguments in ((*services, PROTO), (P4RUNTIME,), (BFRUNTIME,)):
        run = subprocess.run(
            [*command, *arguments], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        if run.returncode:
            raise GenerateError(f"{' '.join([*command, *arguments])}\n{run.stdout}{run.stderr}")


def installed() -> dict[str, str]:
    """The versions of `TOOLS` in this environment; without those that are missing."""
    found = {}
    for tool in TOOLS:
        try:
            found[tool] = importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def pinned_python(folder: Path) -> Path:
    """An interpreter that has exactly `TOOLS`: this one, or one of a new environment in ``folder``."""
    if installed() == TOOLS:
        return Path(sys.executable)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    wanted = [f"{name}=={version}" for name, version in TOOLS.items()]
    # grpcio-tools of that time imports pkg_resources, which setuptools has dropped since.
    command = [str(python), "-m", "pip", "install", "--quiet", *wanted, "setuptools<81"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise GenerateError(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    return python


def neutral(text: str) -> str:
    """``text`` without what generators of different versions write differently."""
    for pattern, replacement in NEUTRAL:
        text = pattern.sub(replacement, text)
    return text


def differing(folder: Path, committed: Path = SOURCE_ROOT) -> list[str]:
    """The generated files that say something else in ``folder`` than in ``committed``, or are missing there."""
    return [
        name
        for name in GENERATED
        if not (committed / name).exists()
        or neutral((folder / name).read_text()) != neutral((committed / name).read_text())
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m inagg_proto.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="compare only; exit with 1 if the committed code is not what it should be"
    )
    check = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory(prefix="inagg-proto-") as name:
        folder = Path(name)
        output = folder / "out"
        output.mkdir()
        try:
            generate(output, Path(sys.executable) if check else pinned_python(folder / "venv"))
        except GenerateError as error:
            print(error, file=sys.stderr)
            return 1
        if check:
            for path in (stale := differing(output)):
                print(f"{path} is not what its .proto says; run: python -m inagg_proto.generate", file=sys.stderr)
            return 1 if stale else 0
        for path in GENERATED:
            shutil.copyfile(output / path, SOURCE_ROOT / path)
            print(SOURCE_ROOT / path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
