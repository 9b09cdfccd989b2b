"""The wheel: what is in it, and that it works without PyTorch and the other extras.

It is built from the source archive (sdist), and this from the working tree without what .gitignore excludes.
So nothing that a fresh clone lacks can get into it, and both artefacts are tested.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from inagg.cli import COMMANDS

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("inagg_wire", "inagg_link", "inagg_proto", "inagg_switch", "inagg_host", "inagg", "inagg_testbed")
NO_WHEEL = re.compile(r"^(tests|p4|protos|switch|host|testbed|\.ci|Makefile)(/|$)")


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the working tree and the wheel that is built from this sdist."""
    folder = tmp_path_factory.mktemp("dist")
    # no isolation: hatchling comes from this environment, so that the test needs no package index
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(artefacts: Path) -> Path:
    (path,) = artefacts.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: list[str]) -> Message:
    (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel alone is installed, without its dependencies."""
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return target


def environment_with(folder: Path) -> dict[str, str]:
    # PYTHONPATH comes before site-packages, where the editable install of this repository is
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_has_every_package_with_its_types(names: list[str], package: str) -> None:
    assert {f"{package}/__init__.py", f"{package}/py.typed"} <= set(names)


def test_the_wheel_has_every_file_of_the_packages(names: list[str]) -> None:
    expected = {
        str(path.relative_to(package.parent))
        for package in (next(REPOSITORY.glob(f"*/{name}")) for name in PACKAGES)
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    compiled = {f"inagg_switch/p4/build/{path.name}" for path in (REPOSITORY / "p4" / "build").iterdir()}
    assert expected | compiled == {name for name in names if ".dist-info/" not in name}


def test_the_wheel_has_no_tests_and_no_source_roots(names: list[str]) -> None:
    assert [name for name in names if NO_WHEEL.match(name)] == []


def test_the_source_archive_has_what_a_clone_has_and_no_environment(artefacts: Path) -> None:
    (path,) = artefacts.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "LICENSE", "constraints.txt", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "dist/")) or "__pycache__" in name]


def test_the_licence_is_in_metadata_and_wheel(metadata: Message, names: list[str]) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_only_extras_require_what_only_extras_use(metadata: Message) -> None:
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    of_extras = re.compile(r"^(torch|matplotlib|scapy|pyroute2|scikit-learn|pytest|grpcio-tools)\b")
    assert required
    assert [line for line in required if of_extras.match(line)] == []


IMPORT_WITHOUT_EXTRAS = f"""
import importlib, sys

class NotInstalled:
    # a finder that comes first, and knows no extra
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {{"torch", "matplotlib", "scapy", "pyroute2", "sklearn"}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, NotInstalled())
for package in {PACKAGES}:
    print(importlib.import_module(package).__file__)

from inagg.cli import main
sys.argv = ["inagg", "--help"]
sys.exit(main())
"""


def test_the_wheel_imports_and_shows_its_help_without_any_extra(installed: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_EXTRAS],
        env=environment_with(installed),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[: len(PACKAGES)] == [str(installed / name / "__init__.py") for name in PACKAGES]
    assert "Usage: inagg [OPTIONS] COMMAND [ARGS]..." in lines


def test_what_the_project_is_developed_with_installs_on_the_oldest_python_that_it_takes() -> None:
    """Debian 12 has 3.11.2, and who has a later one does not notice what needs it."""
    (oldest,) = SpecifierSet(importlib.metadata.metadata("inagg")["Requires-Python"])
    asking = {}
    for name in re.findall(r"^([\w.-]+)==", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE):
        with suppress(importlib.metadata.PackageNotFoundError):  # of an extra that is not here
            asking[name] = ",".join(importlib.metadata.metadata(name).get_all("Requires-Python") or [])
    assert len(asking) > 40
    assert {name: asks for name, asks in asking.items() if f"{oldest.version}.0" not in SpecifierSet(asks)} == {}


@pytest.mark.slow
def test_the_oldest_releases_that_are_allowed_serve(wheel: Path, metadata: Message, tmp_path: Path) -> None:
    """Of the base dependencies: every command starts, and two ranks without PyTorch sum through a switch."""
    floors = tmp_path / "floors.txt"
    floors.write_text("".join(f"{floor}\n" for floor in floors_of(metadata.get_all("Requires-Dist", []))))
    environment = tmp_path / "venv"
    python, command = environment / "bin" / "python", str(environment / "bin" / "inagg")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *quiet, "-r", str(floors), str(wheel)], check=True)
    for name in COMMANDS:
        subprocess.run([command, name, "--help"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    example = str(REPOSITORY / "examples" / "numpy_sums.py")
    run = [command, "testbed", "--workers", "2", "--", str(python), example]
    result = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("the switch summed 30 tensors") == 2


def floors_of(requirements: Iterable[str]) -> list[Requirement]:
    """What is required without an extra, each in the oldest release that is allowed."""
    floors = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is None:
            (least,) = (part.version for part in requirement.specifier if part.operator == ">=")
            floors.append(Requirement(f"{requirement.name}=={least}"))
    return floors


@pytest.mark.slow
def test_the_wheel_installs_into_an_empty_environment_without_torch(wheel: Path, tmp_path: Path) -> None:
    """With its dependencies, from the index that pip is configured with. Run by `make test-install`."""
    environment = tmp_path / "venv"
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    constraints = ["-c", str(REPOSITORY / "constraints.txt")]
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *quiet, *constraints, str(wheel)], check=True)
    subprocess.run([python, "-m", "pip", "check", "--disable-pip-version-check"], check=True)
    imports = f"import {', '.join(PACKAGES)}, importlib.util; print(importlib.util.find_spec('torch'))"
    result = subprocess.run([python, "-c", imports], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "None\n"
    subprocess.run([environment / "bin" / "inagg", "--help"], check=True, stdout=subprocess.DEVNULL)
