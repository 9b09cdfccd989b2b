"""What the Tofino program's compiler says of its tables, as far as our driver is concerned.

`tofino-bf-rt.json` is the compiler's bf-rt.json without the tables for debugging. After a change of p4/tofino:

    python tests/p4/bf_rt.py out/bf-rt.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tofino-bf-rt.json")
KINDS = ("MatchAction_Direct", "Register", "Counter", "PortMetadata")


def trim(description: dict[str, Any]) -> dict[str, Any]:
    """The tables that can be driven."""
    tables = [table for table in description["tables"] if table["table_type"] in KINDS]
    return {"schema_version": description["schema_version"], "tables": tables}


def program() -> dict[str, Any]:
    """The tables of our program."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def main(path: str) -> None:
    found = trim(json.loads(Path(path).read_text()))
    lines = ",\n".join(json.dumps(table) for table in found["tables"])
    FILE.write_text(f'{{"schema_version": "{found["schema_version"]}", "tables": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
