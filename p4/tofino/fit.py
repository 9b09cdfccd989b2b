"""Compiles the Tofino program, assembles it, and says what it needs of the chip.

    python p4/tofino/fit.py                     report on standard output
    python p4/tofino/fit.py --write             and into p4/tofino/FIT.md; what the tests execute into compiled.json
    python p4/tofino/fit.py --keep FOLDER       keep what compiler and assembler wrote
    python p4/tofino/fit.py --check             exit code 1 if a source changed since --write; needs no compiler

Needs p4c's Tofino backend (`p4c-barefoot`) and its assembler (`bfas`) on PATH: https://github.com/p4lang/p4c,
backends/tofino. The compiler alone proves nothing: it takes more than 12 stages without a word; the assembler refuses.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from extract import dump, extract, sources

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "inagg.p4"
REPORT = HERE / "FIT.md"
COMPILED = HERE / "compiled.json"
STAGES = 12
MACROS = ("__TARGET_TOFINO__=1", "__p4c_major__=9", "__p4c_minor__=7", "__p4c_patchlevel__=4")
"""What the compiler's own driver defines."""

COLUMNS = {
    "tables (16)": ("logical_tables", "ids"),
    "gateways (16)": ("gateways", "gateways"),
    "TCAM blocks (24)": ("tcams", "tcams"),
    "SRAM blocks (80)": ("rams", "srams"),
    "stateful ALUs (4)": ("meter_alus", "meters"),
    "counter ALUs (4)": ("statistic_alus", "stats"),
    "hash bits (416)": ("hash_bits", "bits"),
    "match bytes (194)": ("xbar_bytes", "bytes"),
}
"""What a stage has (in brackets how much), and where the compiler's resources.json lists what is in use."""

RETURNS = {
    "tag_compare": "predicate",
    "members_start": "alu_lo",
    "members_join": "cmplo, mem_lo",
    "start": "alu_lo",
    "add": "alu_lo",
    "maximum": "alu_lo",
    "read": "mem_lo",
}
"""What register actions return, by the end of their names: who was missing before (`mem_lo`), the sum after (`alu_lo`).
The compiler may take one for the other without a word."""

Stage = dict[str, Any]


CONTAINERS = {"normal": {8: 64, 16: 96, 32: 64}, "tagalong": {8: 32, 16: 48, 32: 32}}
"""Header containers, by width in bits: how many the chip has that match and actions can use, and how many that only
parser and deparser reach."""


def containers(phv: dict[str, Any], kind: str) -> str:
    """How many containers are in use, from phv.json."""
    used = {(each["bit_width"], each["phv_number"]) for each in phv["containers"] if each["container_type"] == kind}
    return ", ".join(
        f"{sum(of == width for of, _ in used)} of {has} with {width} bits" for width, has in CONTAINERS[kind].items()
    )


def report(stages: list[Stage], phv: dict[str, Any], compiler: str, code: int) -> str:
    """The report as Markdown. A stage is one element of `mau_stages` in resources.json; ingress and egress share it."""
    rows = [(stage["stage_number"], [len(stage[part][used]) for part, used in COLUMNS.values()]) for stage in stages]
    total = [sum(counts) for counts in zip(*(counts for _, counts in rows), strict=True)]
    lines = [
        "# Fit of the Tofino program",
        "",
        "Written by `python p4/tofino/fit.py --write`. No packet has gone through it: this needs no model of the chip.",
        "",
        f"- compiler: {compiler}",
        f"- assembler's exit code: {code}",
        f"- stages: {1 + max(number for number, _ in rows)} of {STAGES}",
        f"- header containers: {containers(phv, 'normal')}",
        f"- those that only parser and deparser reach: {containers(phv, 'tagalong')}",
        "",
        "Each pass of a datagram of 32, 64, 96 or 128 lanes is this program, so this is the fit of each. The lanes of",
        "other passes, up to 96 bytes, are in containers of the second kind.",
        "Ingress and egress share the stages. In brackets: what a stage has.",
        "",
        f"| stage | {' | '.join(COLUMNS)} |",
        f"|---|{'---|' * len(COLUMNS)}",
        *(f"| {name} | {' | '.join(map(str, counts))} |" for name, counts in [*rows, ("all", total)]),
    ]
    return "\n".join(lines) + "\n"


def wrong_returns(registers: dict[str, Any]) -> list[str]:
    """The register actions that do not return what they should. ``registers``: as in compiled.json."""
    return [
        f"{name}: {does}"
        for register in registers.values()
        for name, does in register["actions"].items()
        if f"output {next(what for end, what in RETURNS.items() if name.endswith(end))}" not in does
    ]


def check() -> int:
    """Whether compiled.json is of the sources as they are."""
    stale = json.loads(COMPILED.read_text())["sources"] != sources(HERE.parent)
    if stale:
        print(f"{COMPILED.name} and {REPORT.name}: stale: python p4/tofino/fit.py --write", file=sys.stderr)
    return int(stale)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name} and {COMPILED.name}")
    parser.add_argument("--check", action="store_true", help="only say whether the last report is of these sources")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what compiler and assembler wrote there")
    parser.add_argument(
        "-D", action="append", default=[], metavar="NAME=VALUE", dest="macros", help="SLOT_BITS, BINDINGS"
    )
    options = parser.parse_args()
    if options.check:
        return check()
    missing = [tool for tool in ("p4c-barefoot", "bfas") if shutil.which(tool) is None]
    if missing:
        print(f"NOT COMPILED: not on PATH: {', '.join(missing)} (p4lang/p4c, backends/tofino)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        out = options.keep or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        macros = [f"-D{macro}" for macro in (*MACROS, *options.macros)]
        compiled = run(
            [
                *("p4c-barefoot", "--target", "tofino", "--arch", "tna", "-g", *macros),
                *("--bf-rt-schema", str(out / "bf-rt.json"), "-o", str(out), str(SOURCE)),
            ]
        )
        files = sorted(out.rglob("*.bfa"))
        if compiled.returncode or not files:
            print(compiled.stdout + compiled.stderr, file=sys.stderr)
            return compiled.returncode or 1
        (assembly,) = files
        assembled = run(["bfas", "--target", "tofino", "--no-warn", "-o", str(assembly.parent), str(assembly)])
        told = run(["p4c-barefoot", "--version"])
        lines = (told.stdout + told.stderr).splitlines()
        compiler = "p4c-barefoot " + next((line for line in lines if line.startswith("Version")), "(no version)")
        logs = assembly.parent / "logs"
        resources = json.loads((logs / "resources.json").read_text())["resources"]
        phv = json.loads((logs / "phv.json").read_text())
        text = report(resources["mau"]["mau_stages"], phv, compiler, assembled.returncode)
        print(text, end="")
        if assembled.returncode:
            print(assembled.stdout + assembled.stderr, file=sys.stderr)
            return assembled.returncode
        context = json.loads((assembly.parent / "context.json").read_text())
        try:
            compiled_program = extract(context, assembly.read_text(), compiler, HERE.parent)
        except ValueError as error:
            print(f"{assembly}: {error}", file=sys.stderr)
            return 1
        wrong = wrong_returns(compiled_program["registers"])
        if wrong:
            print("these register actions return something else:", *wrong, sep="\n", file=sys.stderr)
            return 1
        if options.write:
            REPORT.write_text(text)
            COMPILED.write_text(dump(compiled_program))
        return 0


if __name__ == "__main__":
    sys.exit(main())
