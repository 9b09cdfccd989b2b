"""Write the golden vectors, or check (``--check``) that the committed ones are what this code writes.

    python tests/vectors/generate.py [--check]

Vectors are made by the reference code of `inagg_wire`. `tests/wire/test_readme_client.py` makes the same bytes from
the text of `protos/README.md` alone, with nothing of ours imported, so an error would have to be made twice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script, Python finds only this folder

from tests.vectors.load import FOLDER
from tests.vectors.makers import codes, formats, headers, noise, rounds, scales, slots, traces

FILES = {
    "headers": headers.make,
    "formats": formats.make,
    "noise": noise.make,
    "scales": scales.make,
    "codes": codes.make,
    "decode": codes.make_decode,
    "reencode": rounds.make_reencode,
    "partials": rounds.make_partials,
    "contributions": rounds.make_contributions,
    "results": rounds.make_results,
    "slots": slots.make,
    "traces": traces.make,
}
"""File name (without .json) -> what makes its content."""


def _flat(value: Any) -> bool:
    """Whether a value reads best on one line."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not any(isinstance(v, (dict, list)) for v in inside)


def text_of(value: Any, indent: str = "") -> str:
    """JSON with one line for each list or object that holds only plain values."""
    if _flat(value):
        return json.dumps(value)
    deeper = indent + " "
    if isinstance(value, dict):
        lines = [f"{deeper}{json.dumps(k)}: {text_of(v, deeper)}" for k, v in value.items()]
    else:
        lines = [deeper + text_of(v, deeper) for v in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(lines) + "\n" + indent + closing


def generate() -> dict[str, str]:
    """The text of every file, by its name."""
    return {f"{name}.json": text_of(make()) + "\n" for name, make in FILES.items()}


def differences() -> list[str]:
    """Names of files that are missing, stale, or made by nobody."""
    texts = generate()
    committed = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    return sorted(name for name in texts.keys() | committed.keys() if texts.get(name) != committed.get(name))


def main(arguments: list[str]) -> int:
    """0 if all is well, else 1."""
    if arguments == ["--check"]:
        if stale := differences():
            print(f"not what generate.py writes: {', '.join(stale)}; run: make vectors", file=sys.stderr)
        return int(bool(stale))
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for name, text in generate().items():
        (FOLDER / name).write_text(text)
        print(f"{len(text):8} bytes  {FOLDER / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
