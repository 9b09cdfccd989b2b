"""Write the tables of `layout` and `errors` into the dissector for Wireshark and tshark, `inagg.lua`.

    python -m inagg_wire.dissect.lua [--check]

``--check`` writes nothing; the exit code says whether the committed file has what this code writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Final

from ..errors import Reason
from ..layout import (
    BARE,
    CARRIED,
    FIELDS,
    GENERATION_MAX,
    HEADER_BYTES,
    LANE_BITS,
    LANE_MULTIPLE,
    MAGIC,
    OWNER_MAX,
    SIGN_AND_LEVEL,
    SLOT_COUNT_MAX,
    VERSION,
    Encoding,
    Kind,
    Op,
)
from . import ENUMERATIONS, IN_HEX

PATH: Final = Path(__file__).with_name("inagg.lua")

BEGIN: Final = "-- begin generated\n"
END: Final = "-- end generated\n"

NAMED: Final[dict[str, type[IntEnum]]] = {**ENUMERATIONS, "reason": Reason}
_REASON: Final = ("reason", 2, "why a contribution was refused")
"""The field of the owner in an error notice: name, bytes, meaning."""
_UNSIGNED: Final = (Encoding.SCALE8,)


def _table(name: str, entries: Iterable[str]) -> str:
    """A Lua table, one entry a line."""
    return f"local {name} = {{\n" + "".join(f"  {entry},\n" for entry in entries) + "}\n"


def _names(name: str, members: type[IntEnum]) -> str:
    return _table(name, (f'[{int(m)}] = "{m.name.lower()}"' for m in members))


def _field(name: str, size: int, meaning: str) -> str:
    base = "base.HEX" if name in IN_HEX else "base.DEC"
    names = f"{name}_names" if name in NAMED else "nil"
    text = meaning.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name} = ProtoField.uint{8 * size}("inagg.{name}", "{name}", {base}, {names}, nil, "{text}")'


def _carried() -> Iterable[str]:
    for (kind, op), encodings in CARRIED.items():
        allowed = ", ".join(f"[{int(e)}] = true" for e in sorted(encodings))
        yield f'["{int(kind)} {int(op)}"] = {{ {allowed} }}'


def _lane_reader(encoding: Encoding) -> str:
    """Way from a code to a number: sign and level, two's complement, or neither."""
    if encoding in SIGN_AND_LEVEL:
        return "sign and level"
    return "unsigned" if encoding in _UNSIGNED else "two's complement"


def generated() -> str:
    """The text between `BEGIN` and `END`."""
    constants = {
        "MAGIC": f"0x{MAGIC:04X}",
        "HEADER_BYTES": HEADER_BYTES,
        "VERSION": VERSION,
        "LANE_MULTIPLE": LANE_MULTIPLE,
        "SLOT_COUNT_MAX": SLOT_COUNT_MAX,
        "GENERATION_MAX": GENERATION_MAX,
        "OWNER_MAX": OWNER_MAX,
        "MAX": int(Op.MAX),
        "NOTICE": int(Kind.NOTICE),
        "ACK": int(Kind.ACK),
    }
    tables = [
        *(_names(f"{name}_names", members) for name, members in NAMED.items()),
        _table("reason", (f"{r.name.lower()} = {int(r)}" for r in Reason)),
        _table("lane_bits", (f"[{int(e)}] = {bits}" for e, bits in LANE_BITS.items())),
        _table("lane_reader", (f'[{int(e)}] = "{_lane_reader(e)}"' for e in Encoding)),
        _table("carried", _carried()),
        _table("order", (f'"{f.name}"' for f in FIELDS)),
        _table("range_of", (f"{f.name} = {{ {f.offset}, {f.size} }}" for f in FIELDS)),
        _table("fields", (_field(*f) for f in [*((f.name, f.size, f.meaning) for f in FIELDS), _REASON])),
        _table("bare", (f"[{int(kind)}] = true" for kind in sorted(BARE))),
        "".join(f"local {name} = {value}\n" for name, value in constants.items()),
    ]
    return "\n".join(tables)


def text() -> str:
    """The whole of inagg.lua, as it should be."""
    before, rest = PATH.read_text().split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + generated() + END + after


def main(arguments: list[str]) -> int:
    """0 if all is well, else 1."""
    if arguments == ["--check"]:
        stale = PATH.read_text() != text()
        if stale:
            print(f"{PATH} is stale; run: python -m inagg_wire.dissect.lua", file=sys.stderr)
        return int(stale)
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    PATH.write_text(text())
    print(PATH)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
