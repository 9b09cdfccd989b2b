"""The compiled programs that are committed are those of the sources beside them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree

from .golden import P4_FORMATS

P4 = Path(__file__).parents[2] / "p4"


def check(p4: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, p4 / "compile.py", "--check"], capture_output=True, text=True, check=False)


def test_compiled_programs_are_up_to_date() -> None:
    """If this fails: `make p4` with p4c on PATH, and commit p4/build/."""
    done = check(P4)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_source_makes_the_compiled_programs_stale(tmp_path: Path) -> None:
    copy = tmp_path / "p4"
    copytree(P4, copy)
    with (copy / "bmv2" / "slot.p4").open("a") as source:
        source.write("// changed\n")
    done = check(copy)
    assert done.returncode == 1
    assert "nat8-32: stale" in done.stdout


def test_a_changed_program_is_found_out(tmp_path: Path) -> None:
    copy = tmp_path / "p4"
    copytree(P4, copy)
    with (copy / "build" / "nat8-32.json.gz").open("ab") as program:
        program.write(b" ")
    done = check(copy)
    assert done.returncode == 1
    assert "nat8-32: not the files" in done.stdout


def test_every_job_format_has_one_build_of_each_lane_count_up_to_128() -> None:
    builds = json.loads((P4 / "build" / "builds.json").read_text())["builds"]
    for lanes in (32, 64, 128):
        served = [
            name for build in builds if build["lanes"] == lanes and build["role"] == "flat" for name in build["formats"]
        ]
        assert sorted(served) == sorted(P4_FORMATS)
