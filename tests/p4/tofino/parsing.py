"""Parser and deparser of one direction."""

from __future__ import annotations

from typing import Any, Final

from .containers import Containers, bits_of, place

Json = dict[str, Any]
REGISTERS: Final = {"byte0": 8, "byte1": 8, "half": 16, "ctr_zero": 1, "ctr_neg": 1}
"""What a parser compares with, and how many bits it has: bytes of the packet, and whether its counter is 0 or below."""
STATES_MAX: Final = 256


class Parser:
    """The states of a parser; rows of a state in order, the first that fits counts."""

    def __init__(self, program: Json) -> None:
        self._start: str = program["start"]
        self._or = set(program["or"])
        self._states: Json = program["states"]

    def parse(self, data: bytes, containers: Containers) -> int | None:
        """Fill ``containers``. Where the payload begins; None if the packet ends before what is to be taken of it, or
        no row fits: then it is dropped."""
        at, name = 0, self._start
        registers = dict.fromkeys(REGISTERS, 0)
        checksum = counter = 0
        for _ in range(STATES_MAX):
            if name == "end":
                return at
            state = self._states[name]
            row = self._row(state, registers)
            if row is None:
                return None
            for first, last, to in row["extracts"]:
                if at + last >= len(data):
                    return None
                self._write(containers, to, int.from_bytes(data[at + first : at + last + 1]))
            for to, value in row["constants"]:
                self._write(containers, to, value)
            for check in row["checksums"]:
                checksum = 0 if check["start"] else checksum
                checksum += sum(data[at + offset] << 8 * (1 - offset % 2) for offset in check["bytes"])
                if check["end"]:
                    containers.write(place(check["to"]), folded(checksum) != 0xFFFF)
            if row["counter"] is not None:
                change, number = row["counter"]
                counter = {"set": number, "inc": counter + number, "dec": counter - number}[change]
                registers |= {"ctr_zero": counter == 0, "ctr_neg": counter < 0}
            for register, (first, last) in row["load"].items():
                if at + last >= len(data):
                    return None
                registers[register] = int.from_bytes(data[at + first : at + last + 1])
            at, name = at + row["shift"], row["next"]
            if at > len(data):
                return None
        raise AssertionError("the parser does not end")

    def _row(self, state: Json, registers: dict[str, int]) -> Json | None:
        value = 0
        for register in state["match"]:
            value = value << REGISTERS[register] | registers[register]
        for row in state["rows"]:
            if value & row["mask"] == row["value"]:
                found: Json = row
                return found
        return None

    def _write(self, containers: Containers, to: str, value: int) -> None:
        at = place(to)
        containers.write(at, value | (containers.read(at) if at[0] in self._or else 0))


class Deparser:
    """Puts a frame together, and says what the traffic manager is told."""

    def __init__(self, program: Json) -> None:
        self._dictionary: list[tuple[str | int, str]] = program["dictionary"]
        self._checksums: list[list[tuple[str, int]]] = program["checksums"]
        self._told: dict[str, str] = program["told"]

    def header(self, containers: Containers) -> bytes:
        """All that is emitted, in front of the payload."""
        out = bytearray()
        for source, valid in self._dictionary:
            if not containers.read(place(valid)):
                continue
            if isinstance(source, int):
                out += self._checksum(containers, self._checksums[source]).to_bytes(2)
            else:
                out += containers.get(source, 0).to_bytes(bits_of(source) // 8)
        return bytes(out)

    @staticmethod
    def _checksum(containers: Containers, sources: list[tuple[str, int]]) -> int:
        """Of what stands in containers of 16 or 32 bits."""
        total = 0
        for source, swap in sources:
            assert not swap
            assert bits_of(source) > 8
            value = containers.get(source, 0)
            total += (value >> 16) + (value & 0xFFFF)
        return folded(total) ^ 0xFFFF

    def told(self, containers: Containers, what: str) -> int | None:
        """A number for the traffic manager; None if nothing wrote its container."""
        if what not in self._told:
            return None
        at = place(self._told[what])
        return containers.read(at) if at[0] in containers else None


def folded(total: int) -> int:
    """A sum of 16-bit words in ones' complement (RFC 1071)."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
