"""Compiles the P4 programs, and says when what is committed is no longer what the sources say.

    python p4/compile.py                  bmv2: every build, into p4/build/
    python p4/compile.py nat8-32          only these
    python p4/compile.py --check          exit code 1 if a source changed since p4/build/ was made; needs no compiler

Needs `p4c-bm2-ss` of https://github.com/p4lang/p4c on PATH. Users of p4/build/ need no compiler.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
INDEX = BUILD / "builds.json"
COMPILER = "p4c-bm2-ss"

SLOTS = 1024
JOBS = 32
FORMATS = {
    "nat8": ("nat8",),
    "nat4": ("nat4", "nat4-nat8"),
    "tern": ("tern",),
    "dith8": ("dith8", "dith8-exact"),
    "fix32": ("fix32",),
}
"""Encoding of workers' contributions, which a build is for, to the job formats that it serves."""
LANES = {32: tuple(FORMATS), 64: tuple(FORMATS), 128: tuple(FORMATS), 256: ("nat8", "fix32")}
"""Most lanes of a job to the encodings that have a build for so many."""
TREE = (
    ("nat8", "leaf", ("nat8", "nat8-reencode"), ("NAT8", "LEAF")),
    ("nat8", "root", ("nat8",), ("NAT8", "ROOT")),
    # What comes up from the switches below is as what workers send, but for its levels, which the control plane says.
    ("nat8-reencode", "root", ("nat8-reencode",), ("NAT8",)),
)
"""Builds for trees of switches: the first part of the name, role, job formats, macros."""
TREE_LANES = (32, 128)


@dataclass(frozen=True, slots=True)
class Build:
    """One compiled program."""

    family: str
    lanes: int
    formats: tuple[str, ...]
    macros: tuple[str, ...]
    role: str = "flat"
    slots: int = SLOTS
    jobs: int = JOBS

    @property
    def name(self) -> str:
        return f"{self.family}-{self.lanes}" + ("" if self.role == "flat" else f"-{self.role}")

    @property
    def files(self) -> dict[str, Path]:
        """What it is made into, by kind."""
        return {"json": BUILD / f"{self.name}.json.gz", "p4info": BUILD / f"{self.name}.p4info.txtpb"}

    def entry(self, compiler: str) -> dict[str, Any]:
        """Its entry in builds.json."""
        names = {kind: path.name for kind, path in self.files.items()}
        hashes = {kind: digest(path) for kind, path in self.files.items()}
        made = {"compiler": compiler, "sources_sha256": sources_digest(), "sha256": hashes}
        of_this = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"name": self.name, **of_this, **names, **made}


BUILDS = (
    *(Build(e, lanes, FORMATS[e], (e.upper(),)) for lanes, encodings in LANES.items() for e in encodings),
    *(Build(family, lanes, formats, macros, role) for lanes in TREE_LANES for family, role, formats, macros in TREE),
)


def digest(path: Path) -> str:
    """SHA-256 of a file, hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sources_digest() -> str:
    """One SHA-256 over all that the bmv2 program is made of: names and contents."""
    found = sorted((*(HERE / "include").rglob("*.p4"), *(HERE / "bmv2").rglob("*.p4")))
    listing = "".join(f"{digest(path)}  {path.relative_to(HERE).as_posix()}\n" for path in found)
    return hashlib.sha256(listing.encode()).hexdigest()


def without_positions(node: Any) -> Any:
    """bmv2's JSON without the positions in the sources, which are half of it."""
    if isinstance(node, dict):
        return {key: without_positions(value) for key, value in node.items() if key != "source_info"}
    return [without_positions(value) for value in node] if isinstance(node, list) else node


def compile_bmv2(build: Build) -> None:
    """Compile one build; raises `subprocess.CalledProcessError` with the compiler's words."""
    with tempfile.TemporaryDirectory() as folder:
        out, info = Path(folder) / "out.json", Path(folder) / "out.p4info.txtpb"
        macros = dict.fromkeys(build.macros, 1) | {"LANES": build.lanes, "SLOTS": build.slots, "JOBS": build.jobs}
        command = [COMPILER, *(f"-D{name}={value}" for name, value in macros.items())]
        command += [
            *(f"--Wdisable={kind}" for kind in ("unused", "uninitialized-use", "uninitialized-out-param")),
            "--p4runtime-files",
            str(info),
            "-o",
            str(out),
            str(HERE / "bmv2" / "inagg.p4"),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        program = without_positions(json.loads(out.read_text()))
        program["program"] = "p4/bmv2/inagg.p4"  # not where it lay on the machine that compiled it
        text = json.dumps(program, separators=(",", ":")) + "\n"
        build.files["json"].write_bytes(gzip.compress(text.encode(), mtime=0))  # the same bytes at any time
        build.files["p4info"].write_text(info.read_text())


def version(compiler: str) -> str:
    """The compiler's own words on its version."""
    out = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True)
    return next(line for line in (out.stdout + out.stderr).splitlines() if line.startswith("Version"))


def index() -> dict[str, dict[str, Any]]:
    """builds.json by name of the build; empty if there is none."""
    return {entry["name"]: entry for entry in json.loads(INDEX.read_text())["builds"]} if INDEX.exists() else {}


def problems() -> list[str]:
    """Which builds are missing or not what the sources say; empty if p4/build/ is up to date."""
    known, wrong = index(), []
    for build in BUILDS:
        entry = known.get(build.name)
        if entry is None or not all(path.exists() for path in build.files.values()):
            wrong.append(f"{build.name}: missing")
        elif entry["sources_sha256"] != sources_digest():
            wrong.append(f"{build.name}: stale, the sources have changed since it was compiled")
        elif entry != build.entry(entry["compiler"]):
            wrong.append(f"{build.name}: not the files that builds.json speaks of")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="*", help="names, for example nat8-32; all if none is given")
    parser.add_argument("--check", action="store_true", help="only say whether p4/build/ is up to date")
    parser.add_argument("--jobs", type=int, default=1, help="compilers to run at once")
    options = parser.parse_args()
    unknown = set(options.builds) - {build.name for build in BUILDS}
    if unknown:
        parser.error(f"no build {', '.join(sorted(unknown))}; there are {', '.join(b.name for b in BUILDS)}")
    if options.check:
        wrong = problems()
        print("\n".join(wrong) if wrong else "p4/build/ is up to date")
        return 1 if wrong else 0
    if shutil.which(COMPILER) is None:
        print(f"NOT COMPILED: {COMPILER} is not on PATH. It is part of https://github.com/p4lang/p4c.", file=sys.stderr)
        print("p4/build/ is as it was; `python p4/compile.py --check` says whether it is stale.", file=sys.stderr)
        return 1
    BUILD.mkdir(exist_ok=True)
    chosen = [build for build in BUILDS if not options.builds or build.name in options.builds]
    known, compiler = index(), version(COMPILER)
    with ThreadPoolExecutor(options.jobs) as pool:
        for build, done in [(build, pool.submit(compile_bmv2, build)) for build in chosen]:
            try:
                done.result()
            except subprocess.CalledProcessError as error:
                print(f"{build.name}: {COMPILER} failed\n{error.stderr}", file=sys.stderr)
                return 1
            known[build.name] = build.entry(compiler)
            entries = [known[name] for name in (one.name for one in BUILDS) if name in known]
            INDEX.write_text(json.dumps({"builds": entries}, indent=1) + "\n")
            print(f"{build.name}: {build.files['json'].stat().st_size // 1024} KiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
