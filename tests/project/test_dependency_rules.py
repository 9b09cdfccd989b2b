"""The dependency rules hold, and the checker that says so finds each way to break them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath

import pytest
from tests.project.dependency_rules import BASE_MODULES, EXTRA_MODULES, PACKAGES, SOURCE_ROOTS, violations

REPOSITORY = Path(__file__).parents[2]


def test_no_file_breaks_a_rule() -> None:
    found = []
    for root in SOURCE_ROOTS:
        for file in sorted((REPOSITORY / root).rglob("*.py")):
            path = PurePosixPath(file.relative_to(REPOSITORY))
            found += violations(path, file.read_text(encoding="utf-8"))
    assert not found, "\n".join(map(str, found))


def test_every_package_is_checked() -> None:
    roots = [REPOSITORY / root for root in SOURCE_ROOTS]
    assert {path.parent.name for root in roots for path in root.glob("*/__init__.py")} == set(PACKAGES)


BROKEN = [
    # inagg_wire: the standard library and numpy only
    ("protos/inagg_wire/codec.py", "import numba"),
    ("protos/inagg_wire/codec.py", "from inagg_proto import v1"),
    ("protos/inagg_wire/codec.py", "import inagg_switch.aggregation.model"),
    ("protos/inagg_wire/header.py", "import scapy.all"),
    # inagg_link: inagg_wire, numpy and Numba besides
    ("protos/inagg_wire/codec.py", "from inagg_link import UdpLink"),
    ("protos/inagg_link/udp.py", "import structlog"),
    ("protos/inagg_link/pcap.py", "import scapy.all"),
    # cores without input, output and time
    ("switch/inagg_switch/control/jobs.py", "import asyncio"),
    ("switch/inagg_switch/control/registry.py", "from ..software.multicast import open_groups"),
    ("switch/inagg_switch/control/registry.py", "from inagg_switch.service import server"),
    ("switch/inagg_switch/aggregation/aggregator.py", "import socket"),
    ("host/inagg_host/core/engine.py", "from time import monotonic"),
    ("protos/inagg_wire/dissect/scapy_layer.py", "import torch"),
    # inagg_proto
    ("protos/inagg_proto/v1/control_pb2_grpc.py", "import numpy"),
    ("protos/inagg_proto/control.py", "import grpc_tools"),
    # the switch and the host never import each other, nor the testbed
    ("switch/inagg_switch/aggregation/model.py", "from inagg_host.core import Engine"),
    ("switch/inagg_switch/service/server.py", "import inagg_host"),
    ("host/inagg_host/core/engine.py", "import inagg_switch as switch"),
    ("host/inagg_host/membership/session.py", "from inagg_switch.service import server"),
    ("switch/inagg_switch/cli/commands.py", "from inagg.cli import run"),
    ("host/inagg_host/warmup.py", "from inagg_testbed import warmup"),
    # the command names its subcommands, and imports none
    ("command/inagg/cli.py", "from inagg_testbed.demo import demo"),
    ("command/inagg/cli.py", "import numpy"),
    # gRPC in the service and the clients of P4 switches only
    ("switch/inagg_switch/control/registry.py", "import grpc"),
    ("switch/inagg_switch/cli/top.py", "import grpc"),
    ("switch/inagg_switch/p4/p4_driver.py", "from inagg_proto.p4runtime import v1"),
    ("switch/inagg_switch/software/data_plane.py", "import grpc"),
    ("switch/inagg_switch/aggregation/model.py", "from google.protobuf import message"),
    ("host/inagg_host/core/engine.py", "from inagg_proto.v1 import control_pb2"),
    ("host/inagg_host/io/transport.py", "from grpc_health.v1 import health"),
    ("testbed/inagg_testbed/demo.py", "import grpc.aio"),
    # torch in the host's PyTorch files, the compressors and the testbed only
    ("host/inagg_host/core/engine.py", "import torch"),
    ("host/inagg_host/codec/encoder.py", "import torch.cuda"),
    ("host/inagg_host/torch.py", "import torch"),
    ("host/inagg_host/core/torch/x.py", "import torch"),
    ("switch/inagg_switch/torch/x.py", "import torch"),
    # Triton where the kernels in it are
    ("host/inagg_host/torch/cuda.py", "import triton"),
    ("testbed/inagg_testbed/bench/kernels.py", "import triton.language as tl"),
    # scapy and the other extras
    ("host/inagg_host/io/transport.py", "import scapy.layers.inet"),
    ("switch/inagg_switch/software/data_plane.py", "from scapy import all"),
    ("switch/inagg_switch/software/data_plane.py", "import pyroute2"),
    ("host/inagg_host/compress/tern.py", "import sklearn.datasets"),
    ("switch/inagg_switch/cli/top.py", "import matplotlib.pyplot"),
    # what is not declared
    ("testbed/inagg_testbed/demo.py", "import pandas"),
    ("testbed/inagg_testbed/demo.py", "import pytest"),
    ("host/inagg_host/core/engine.py", "from tests.vectors import generate"),
    # ways to hide an import
    ("host/inagg_host/core/engine.py", "def step():\n    import torch"),
    ("host/inagg_host/core/engine.py", "if TYPE_CHECKING:\n    from torch import Tensor"),
    ("host/inagg_host/core/engine.py", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
    ("host/inagg_host/core/engine.py", "import os, torch"),
    ("host/inagg_host/core/engine.py", "importlib.import_module('torch')"),
    ("host/inagg_host/core/engine.py", "import_module('torch.nn')"),
    ("host/inagg_host/core/engine.py", "torch = __import__('torch')"),
    ("host/inagg_host/core/engine.py", "from ...inagg_switch import model"),
]


@pytest.mark.parametrize(("path", "source"), BROKEN)
def test_a_broken_rule_is_found(path: str, source: str) -> None:
    (violation,) = violations(PurePosixPath(path), source)
    assert violation.path == path


ALLOWED = [
    ("protos/inagg_wire/codec.py", "import struct, zlib\nimport numpy as np\nfrom . import layout"),
    ("protos/inagg_wire/codec.py", "from inagg_wire.errors import Reason"),
    ("protos/inagg_wire/dissect/scapy_layer.py", "import scapy.all\nfrom ..layout import FIELDS"),
    ("protos/inagg_proto/v1/control_pb2_grpc.py", "import grpc\nfrom google.protobuf import descriptor"),
    ("protos/inagg_proto/generate.py", "from grpc_tools import protoc"),
    ("protos/inagg_link/jit.py", "import numba"),
    ("protos/inagg_link/simd.py", "import numba"),
    ("protos/inagg_link/native.py", "import numba"),
    ("switch/inagg_switch/aggregation/kernels.py", "import numba\nimport inagg_wire.noise"),
    ("switch/inagg_switch/service/server.py", "import grpc\nfrom inagg_proto.v1 import control_pb2"),
    ("switch/inagg_switch/service/driver_threads.py", "import asyncio, time\nfrom ..software import config"),
    ("switch/inagg_switch/p4/bmv2/p4runtime_client.py", "import grpc"),
    ("switch/inagg_switch/cli/why.py", "from inagg_proto.v1 import control_pb2"),
    ("switch/inagg_switch/control/jobs.py", "from ..driver import Binding"),
    ("host/inagg_host/membership/session.py", "import grpc"),
    ("host/inagg_host/torch/backend.py", "import torch.distributed\nfrom ..core import Engine"),
    ("host/inagg_host/compress/tern.py", "import torch"),
    ("host/inagg_host/torch/gpu/triton_encode.py", "import triton"),
    ("testbed/inagg_testbed/demo.py", "import torch, scapy.all, sklearn, pyroute2, inagg_switch, inagg_host"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_the_rules_allow_is_not_reported(path: str, source: str) -> None:
    assert violations(PurePosixPath(path), source) == []


def test_a_violation_names_file_line_module_and_rule() -> None:
    (violation,) = violations(PurePosixPath("host/inagg_host/core/engine.py"), "import os\n\nimport torch.nn")
    assert str(violation).startswith("host/inagg_host/core/engine.py:3: imports torch.nn: torch only in")


@pytest.mark.parametrize("path", ["setup.py", "tests/wire/test_codec.py", "host/other/engine.py"])
def test_a_file_outside_the_packages_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="none of our packages"):
        violations(PurePosixPath(path), "")


def distributions(requirements: list[str]) -> set[str]:
    names = set()
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9_.-]+", requirement)
        assert name is not None, requirement
        names.add(name.group())
    return names


def test_the_modules_of_every_declared_dependency_are_known() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    of_users = [requirement for extra, list_ in extras.items() if extra not in ("dev", "docs") for requirement in list_]
    assert distributions(project["dependencies"]) == set(BASE_MODULES)
    assert distributions(of_users) - {"inagg"} == set(EXTRA_MODULES), "extras may include extras of ours"
