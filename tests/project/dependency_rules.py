"""Which package may import what, as a function of a file's path and source.

The rules (the reasons: a switch box needs no PyTorch, a worker needs no switch, and the packet format can be
used with numpy alone):

- the standard library and a package's own modules: always, but for what is below;
- `inagg_wire` imports numpy besides, and nothing else; its dissector (`dissect/`) imports scapy too;
- `inagg_link` imports `inagg_wire`, numpy and Numba besides;
- `inagg_proto` imports gRPC and protobuf besides, `inagg_wire`, and in `generate.py` the generator;
- `inagg_switch` and `inagg_host` never import each other, and neither of them imports the command or the testbed;
- `inagg`, the command, imports click, `inagg_wire` and `inagg_link`; its table names the others' modules, of which that
  is imported which runs; so the command that a switch box runs has nothing of the testbed in it;
- what decides and what computes on the switch (`control/`, `aggregation/`) and on the worker (`core/`, `codec/`) has no
  sockets, clocks, threads or event loops, and on the switch imports no folder that has;
- gRPC: only in the switch's `service/` and its P4 clients (`p4/bmv2/`, `p4/tofino/`, `p4/grpc_stream.py`), and in
  the host's `membership/`; there, and in the switch's `cli/`, protobuf and `inagg_proto` too;
- torch: only in `inagg_host/torch/`, `inagg_host/compress/`, `inagg_host/autoload.py` (torch calls it), the testbed;
- Triton, which torch brings for CUDA alone: only in `inagg_host/torch/gpu/`;
- scapy: only in the dissector and the testbed; torchft: only in `inagg_host/torch/elastic.py` and the testbed; whatever
  else an extra brings: only in the testbed;
- nothing that pyproject.toml does not declare.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

SOURCE_ROOTS = ("protos", "switch", "host", "command", "testbed")
PACKAGES = ("inagg_wire", "inagg_link", "inagg_proto", "inagg_switch", "inagg_host", "inagg", "inagg_testbed")

# Distribution (as pyproject.toml names it) -> the top-level modules that it installs and that we import.
BASE_MODULES = {
    "click": {"click"},
    "googleapis-common-protos": {"google"},
    "humanize": {"humanize"},
    "msgspec": {"msgspec"},
    "grpcio": {"grpc"},
    "grpcio-health-checking": {"grpc_health"},
    "grpcio-reflection": {"grpc_reflection"},
    "numba": {"numba"},
    "numpy": {"numpy"},
    "prometheus-client": {"prometheus_client"},
    "protobuf": {"google"},
    "rich": {"rich"},
    "structlog": {"structlog"},
}
EXTRA_MODULES = {
    "torch": {"torch", "triton"},
    "matplotlib": {"matplotlib"},
    "scapy": {"scapy"},
    "pyroute2": {"pyroute2"},
    "scikit-learn": {"sklearn"},
    "scipy": {"scipy"},
    "lightning": {"lightning"},
    "accelerate": {"accelerate"},
    "transformers": {"transformers"},
    "ray": {"ray"},
    "torchft": {"torchft"},
}

GRPC = {"grpc", "grpc_health", "grpc_reflection", "google"}
SANS_IO = {"inagg_switch": ("control", "aggregation"), "inagg_host": ("core", "codec")}
IO_MODULES = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "select",
    "selectors",
    "socket",
    "subprocess",
    "threading",
    "time",
}
IO_FOLDERS = ("cli", "p4", "service", "software")
"""Of the switch."""
BASE = set().union(*BASE_MODULES.values())
EXTRAS = set().union(*EXTRA_MODULES.values())


@dataclass(frozen=True)
class Violation:
    """An import that no rule allows."""

    path: str
    line: int
    module: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: imports {self.module}: {self.rule}"


def imported_modules(path: PurePosixPath, source: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of each module that a source imports, in functions and for type checking too.

    `importlib.import_module` and `__import__` count where their first argument is a literal.
    """
    package = path.parts[1:-1]  # of the file, below the source root: for relative imports
    for node in ast.walk(ast.parse(source, filename=str(path))):
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield node.lineno, name.name
            case ast.ImportFrom(module=module, level=0) if module:
                yield node.lineno, module
            case ast.ImportFrom(module=module, level=level):
                above = package[: len(package) - level + 1]
                yield node.lineno, ".".join((*above, module) if module else above)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield node.lineno, module


def may_use_grpc(package: str, inside: tuple[str, ...]) -> bool:
    if package == "inagg_host":
        return _folder(inside) == "membership"
    return package == "inagg_switch" and (
        _folder(inside) == "service" or inside[:2] in (("p4", "bmv2"), ("p4", "tofino"), ("p4", "grpc_stream.py"))
    )


def may_use_messages(package: str, inside: tuple[str, ...]) -> bool:
    return may_use_grpc(package, inside) or (package == "inagg_switch" and _folder(inside) == "cli")


def is_sans_io(package: str, inside: tuple[str, ...]) -> bool:
    return _folder(inside) in SANS_IO.get(package, ())


def may_use_torch(package: str, inside: tuple[str, ...]) -> bool:
    if package == "inagg_testbed":
        return True
    if package != "inagg_host":
        return False
    return _folder(inside) in ("torch", "compress") or inside == ("autoload.py",)


def _folder(inside: tuple[str, ...]) -> str:
    """The first folder inside the package, empty for a file that is in none."""
    return inside[0] if len(inside) > 1 else ""


def broken_rule(package: str, inside: tuple[str, ...], name: str) -> str | None:
    """The rule that an import breaks, None if it may stand.

    `inside` is the path of the importing file inside its package, `name` the module that it imports.
    """
    module, _, rest = name.partition(".")
    if is_sans_io(package, inside):
        if module in IO_MODULES:
            return f"{_folder(inside)}/ has no sockets, clocks, threads or event loops: it is given bytes and the time"
        if module == package == "inagg_switch" and rest.split(".")[0] in IO_FOLDERS:
            return f"{_folder(inside)}/ imports no folder that does input and output"
    if module == package or module in sys.stdlib_module_names:
        return None
    if module not in BASE | EXTRAS | set(PACKAGES) and (inside, module) != (("generate.py",), "grpc_tools"):
        return "pyproject.toml declares no dependency that brings it"
    if package == "inagg_wire":
        allowed = {"numpy", "scapy"} if inside[0] == "dissect" else {"numpy"}
        return None if module in allowed else "inagg_wire imports the standard library and numpy only"
    if package == "inagg_link":
        allowed = {"inagg_wire", "numba", "numpy"}
        return None if module in allowed else "inagg_link imports inagg_wire, numpy and Numba only"
    if package == "inagg_proto":
        allowed = GRPC | {"inagg_wire", "grpc_tools"}
        return None if module in allowed else "inagg_proto imports gRPC, protobuf and inagg_wire only"
    if {package, module} == {"inagg_switch", "inagg_host"}:
        return "the switch and the host never import each other"
    if package == "inagg":
        allowed = {"click", "inagg_link", "inagg_wire"}
        return None if module in allowed else "the command imports click, inagg_link and inagg_wire only"
    if module in {"inagg", "inagg_testbed"} and package != "inagg_testbed":
        return "only the testbed imports the command, and nobody the testbed"
    if module in GRPC - {"google"} and not may_use_grpc(package, inside):
        return "gRPC only in the switch's service/ and P4 clients, and in the host's membership/"
    if module in {"google", "inagg_proto"} and not may_use_messages(package, inside):
        return "messages only where gRPC is, and in the switch's cli/"
    if module == "torch" and not may_use_torch(package, inside):
        return "torch only in the host's torch/ and compress/, and in the testbed"
    if module == "triton":
        in_gpu = package == "inagg_host" and inside[:2] == ("torch", "gpu")
        return None if in_gpu else "Triton only in the host's torch/gpu/"
    if module == "torchft" and (package, *inside) == ("inagg_host", "torch", "elastic.py"):
        return None
    if module in EXTRAS - {"torch"} and package != "inagg_testbed":
        return "what an extra brings is for the testbed only (scapy: the dissector too; torchft: torch/elastic.py too)"
    return None


def violations(path: PurePosixPath, source: str) -> list[Violation]:
    """The imports in a source that break a rule.

    `path` is relative to the repository: source root, package, then the file. Raises ValueError for any other
    path, and SyntaxError if the source is not Python.
    """
    if len(path.parts) < 3 or path.parts[0] not in SOURCE_ROOTS or path.parts[1] not in PACKAGES:
        raise ValueError(f"{path} lies in none of our packages")
    package, inside = path.parts[1], path.parts[2:]
    found = []
    for line, module in imported_modules(path, source):
        rule = broken_rule(package, inside, module)
        if rule is not None:
            found.append(Violation(str(path), line, module, rule))
    return found
