"""A client and a switch written only from protos/README.md, with nothing of ours imported, make the golden vectors."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.vectors.load import Vector, label, vectors
from tests.wire import stranger_client as client
from tests.wire import stranger_switch as switch

STANDARD = {"__future__", "collections", "dataclasses", "fractions", "struct", "typing", "zlib"}


def unit_of(vector: Vector) -> Fraction | None:
    u = vector["unit"]
    return None if u is None else u["mantissa"] * Fraction(2) ** u["exponent"]


def bits_of(digits: list[str]) -> list[int]:
    return [int(d, 16) for d in digits]


def in_hex(bits: list[int], float_type: str) -> list[str]:
    width = (1 + sum(client.FLOATS[float_type])) // 4
    return [f"{b:0{width}x}" for b in bits]


def key_of(vector: Vector) -> tuple[int, int]:
    return client.key(vector["seed"], vector["worker"], int(vector["block"], 16))


@pytest.mark.parametrize("module", [client, switch], ids=["client", "switch"])
def test_the_strangers_import_nothing_of_ours(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            imported.add(node.module.split(".")[0])
    assert imported <= STANDARD


def test_valid_datagrams_are_parsed_and_built() -> None:
    for vector in vectors("headers", "valid"):
        data = bytes.fromhex(vector["datagram"])
        parsed = client.parse(data)
        assert not isinstance(parsed, int), vector["what"]
        header, payload = parsed
        assert header == client.Header(**vector["fields"]), vector["what"]
        assert client.build(header, payload) == data


def test_invalid_datagrams_are_refused_for_the_first_reason_that_fits() -> None:
    for vector in vectors("headers", "invalid"):
        assert client.parse(bytes.fromhex(vector["datagram"])) == vector["reason"], vector["what"]


def test_job_formats_have_the_numbers_of_the_table() -> None:
    for v in vectors("formats"):
        fmt = client.job_format(v["format"], v["workers"])
        assert (fmt.up, fmt.down, fmt.top) == (v["up"], v["down"], v["top"]), v["what"]
        assert (fmt.result_shift, fmt.f, fmt.down_highest) == (v["result_shift"], v["unit_shift"], v["result_levels"])
        assert client.scale_lanes(fmt, v["max_lanes"]) == v["scale_lanes"]


def test_noise_of_hosts_and_switch() -> None:
    for v in vectors("noise", "block_keys"):
        assert key_of(v) == (int(v["k0"], 16), int(v["k1"], 16)), v["what"]
    for v in vectors("noise", "host_words"):
        words = [client.word(int(v["k0"], 16), int(v["k1"], 16), lane, v["index"]) for lane in range(len(v["words"]))]
        assert words == bits_of(v["words"]), v["what"]
    for v in vectors("noise", "switch_words"):
        r = switch.noise(v["seed"], v["slot"], v["generation"], 4 * v["group"] + 3)
        assert r == int(v["word"], 16), v["what"]


@pytest.mark.parametrize("vector", vectors("scales", "rounds"), ids=label)
def test_scale_rounds(vector: Vector) -> None:
    fmt = client.job_format(vector["format"], vector["workers"])
    blocks = [bits_of(values) for values in vector["values"]]
    own = [client.scale_byte(fmt, values, vector["float_type"]) for values in blocks]
    assert own == vector["own"]
    assert max(own) == vector["agreed"]
    q = 0
    if fmt.refined:
        refinements = [
            client.refinement_byte(fmt, values, vector["float_type"], o, vector["agreed"])
            for values, o in zip(blocks, own, strict=True)
        ]
        assert refinements == vector["refinements"]
        q = max(refinements)
    assert q == vector["refinement"]
    assert client.unit(fmt, vector["agreed"], q) == unit_of(vector)


def test_units_of_agreed_bytes() -> None:
    for v in vectors("scales", "units"):
        fmt = client.job_format(v["format"], v["workers"])
        assert client.unit(fmt, v["scale"], v["refinement"]) == unit_of(v), v["what"]


@pytest.mark.parametrize("vector", vectors("codes"), ids=label)
def test_codes(vector: Vector) -> None:
    fmt = client.job_format(vector["format"], vector["workers"])
    k0, k1 = (int(vector["key"][k], 16) for k in ("k0", "k1"))
    codes = client.encode(fmt, bits_of(vector["values"]), vector["float_type"], unit_of(vector), k0, k1)
    assert codes == vector["codes"]


@pytest.mark.parametrize("vector", vectors("decode"), ids=label)
def test_decoding(vector: Vector) -> None:
    fmt = client.job_format(vector["format"], vector["workers"])
    bits = client.decode(fmt, vector["codes"], vector["float_type"], unit_of(vector))
    assert in_hex(bits, vector["float_type"]) == vector["values"]


@pytest.mark.parametrize("vector", vectors("contributions"), ids=label)
def test_whole_contributions(vector: Vector) -> None:
    v = vector
    fmt = client.job_format(v["format"], v["workers"])
    slot, generation = client.place(v["lease"]["base"], v["lease"]["slots"], int(v["block"], 16))
    codes = client.encode(fmt, bits_of(v["values"]), v["float_type"], unit_of(v), *key_of(v))
    header = client.Header(
        client.CONTRIBUTION, client.SUM, fmt.up, len(codes), v["job"], 0, v["token"], slot, generation
    )
    assert client.build(header, client.pack(fmt.up, codes)).hex() == v["datagram"]


@pytest.mark.parametrize("vector", vectors("results"), ids=label)
def test_whole_results(vector: Vector) -> None:
    """The strangers' clients and switch: values to contributions to a result to values."""
    v = vector
    fmt = client.job_format(v["format"], v["workers"])
    sums: list[int] = []
    invalid_codes = 0
    for rank, digits in enumerate(v["contributions"]):
        parsed = client.parse(bytes.fromhex(digits))
        assert not isinstance(parsed, int)
        header, payload = parsed
        codes = client.unpack(header.format, payload)
        if "values" in v:
            key = client.key(v["seed"], rank, int(v["block"], 16))
            assert codes == client.encode(fmt, bits_of(v["values"][rank]), "float32", unit_of(v), *key)
        integers, invalid = switch.integers(fmt, v["op"], codes)
        join = sum if v["op"] == client.SUM else max
        sums = [join(pair) for pair in zip(sums, integers, strict=True)] if sums else integers
        invalid_codes += invalid
    assert sums == v["sums"]
    assert invalid_codes == v["invalid_codes"]
    parsed = client.parse(bytes.fromhex(v["result"]))
    assert not isinstance(parsed, int)
    header, payload = parsed
    codes = client.unpack(header.format, payload)
    down = fmt.down if v["op"] == client.SUM else client.SCALE8
    numbers = (v["job"], 0, v["token"], v["slot"], v["generation"])
    assert header == client.Header(client.RESULT, v["op"], down, len(sums), *numbers)
    assert codes == switch.result_codes(fmt, v["op"], sums, v["seed"], v["slot"], v["generation"])
    for float_type, digits in v.get("decoded", {}).items():
        assert in_hex(client.decode(fmt, codes, float_type, unit_of(v)), float_type) == digits


@pytest.mark.parametrize("vector", vectors("reencode"), ids=label)
def test_reencoding(vector: Vector) -> None:
    v = vector
    fmt = client.job_format(v["format"], v["workers"])
    assert fmt.down == v["encoding"]
    codes = switch.result_codes(fmt, client.SUM, v["sums"], v["seed"], v["slot"], v["generation"])
    assert codes == v["codes"]


@pytest.mark.parametrize("vector", vectors("partials"), ids=label)
def test_rounded_partial_sums(vector: Vector) -> None:
    v = vector
    place = (v["seed"], v["slot"], v["generation"], v["first_rank"], v["levels"])
    assert switch.partial_codes(v["format"], v["workers"], v["sums"], *place) == v["codes"]


def test_slots_and_generations() -> None:
    for v in vectors("slots"):
        assert client.place(v["base"], v["slots"], int(v["block"], 16)) == (v["slot"], v["generation"]), v["what"]


@pytest.mark.parametrize("vector", vectors("traces"), ids=label)
def test_traces(vector: Vector) -> None:
    """The strangers' switch does what the traces' authors wrote down by hand."""
    subject = switch.Switch()
    for step in vector["steps"]:
        if "bind" in step:
            subject.bind(step["bind"])
            continue
        if "unbind" in step:
            del subject.bindings[step["unbind"]]
            continue
        host, port = step["source"]
        outcome, reason, outputs, invalid_codes = subject.receive(bytes.fromhex(step["datagram"]), (host, port))
        assert outcome == step["outcome"], step["what"]
        assert reason == step.get("reason", 0), step["what"]
        assert invalid_codes == step["invalid_codes"], step["what"]
        sent = [{"to": [list(a) for a in to], "datagram": data.hex()} for to, data in outputs]
        assert sent == step["outputs"], step["what"]
