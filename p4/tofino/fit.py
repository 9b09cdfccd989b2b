"""Compiles the Tofino program, assembles it, and says what it needs of the chip.

    python p4/tofino/fit.py                     report on standard output
    python p4/tofino/fit.py --write             and into p4/tofino/FIT.md
    python p4/tofino/fit.py --keep FOLDER       keep what compiler and assembler wrote

Needs p4c's Tofino backend (`p4c-barefoot`) and its assembler (`bfas`) on PATH: https://github.com/p4lang/p4c,
backends/tofino. The compiler alone proves nothing: it takes more than 12 stages without a word; the assembler refuses.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "inagg.p4"
REPORT = HERE / "FIT.md"
STAGES = 12
MACROS = ("__TARGET_TOFINO__=1", "__p4c_major__=9", "__p4c_minor__=7", "__p4c_patchlevel__=4")
"""What the compiler's own driver defines."""

STAGE = re.compile(r"^stage (\d+) (ingress|egress):")
TABLE = re.compile(r"^  (\w+) [\w$.\-]+(?: \d+)?:")
KINDS = {
    "ternary_match": "ternary tables",
    "exact_match": "exact tables",
    "hash_action": "tables without a key",
    "proxy_hash": "exact tables",
    "gateway": "gateways",
    "stateful": "stateful ALUs",
    "counter": "counters",
}
COLUMNS = tuple(dict.fromkeys(KINDS.values()))


@dataclass(slots=True)
class Stage:
    """What one gress needs in one stage."""

    number: int
    gress: str
    uses: Counter[str] = field(default_factory=Counter)


def stages(assembly: str) -> list[Stage]:
    """What an assembler file says of the stages."""
    found: list[Stage] = []
    for line in assembly.splitlines():
        if stage := STAGE.match(line):
            found.append(Stage(int(stage[1]), stage[2]))
        elif found and (table := TABLE.match(line)) and table[1] in KINDS:
            found[-1].uses[KINDS[table[1]]] += 1
    return [stage for stage in found if stage.uses]


def report(found: list[Stage], compiler: str, code: int) -> str:
    """The report as Markdown."""
    highest = 1 + max((stage.number for stage in found), default=-1)
    lines = [
        "# Fit of the Tofino program",
        "",
        "Written by `python p4/tofino/fit.py --write`. No packet has gone through it: this needs no model of the chip.",
        "",
        f"- compiler: {compiler}",
        f"- assembler's exit code: {code}",
        f"- stages: {highest} of {STAGES}",
        f"- stateful ALUs: {sum(stage.uses['stateful ALUs'] for stage in found)}",
        "",
        f"| stage | gress | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
        *(
            f"| {stage.number} | {stage.gress} | {' | '.join(str(stage.uses[column]) for column in COLUMNS)} |"
            for stage in sorted(found, key=lambda stage: (stage.gress == "egress", stage.number))
        ),
    ]
    return "\n".join(lines) + "\n"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write the report to {REPORT.name} as well")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what compiler and assembler wrote there")
    parser.add_argument(
        "-D", action="append", default=[], metavar="NAME=VALUE", dest="macros", help="SLOT_BITS, BINDINGS"
    )
    options = parser.parse_args()
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
        text = report(stages(assembly.read_text()), compiler, assembled.returncode)
        print(text, end="")
        if assembled.returncode:
            print(assembled.stdout + assembled.stderr, file=sys.stderr)
        elif options.write:
            REPORT.write_text(text)
        return assembled.returncode


if __name__ == "__main__":
    sys.exit(main())
