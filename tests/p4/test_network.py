"""The file that says what is plugged in where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inagg_switch.p4.network import Host, Network, NetworkError, network_from, network_toml, read_network

GOOD: dict[str, Any] = {
    "switch": {"address": "10.77.0.254", "mac": "02:00:0a:4d:00:fe"},
    "host": [
        {"address": "10.77.0.1", "mac": "02:00:0a:4d:00:01", "port": 0},
        {"address": "10.77.0.2", "mac": "02:00:0A:4D:00:02", "port": 7},
    ],
}
NETWORK = Network(
    "10.77.0.254",
    0x02000A4D00FE,
    (Host("10.77.0.1", 0x02000A4D0001, 0), Host("10.77.0.2", 0x02000A4D0002, 7)),
)


def test_a_description_is_read() -> None:
    assert network_from(GOOD) == NETWORK
    assert NETWORK.data_port == 47101
    assert NETWORK.host("10.77.0.2") == NETWORK.hosts[1]
    assert NETWORK.host("10.77.0.3") is None


@pytest.mark.parametrize("loopback", [(), ((68,),), ((68, 69), (196,))])
def test_what_is_written_is_read_back(tmp_path: Path, loopback: tuple[tuple[int, ...], ...]) -> None:
    network = replace(NETWORK, loopback=loopback)
    file = tmp_path / "network.toml"
    file.write_text(network_toml(network))
    assert read_network(file) == network


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"switch": None}, r"^switch: Expected `object`, got `null`"),
        ({"switch": GOOD["switch"] | {"loopback": [68]}}, r"^switch.loopback\[0\]: Expected `array`, got `int`"),
        ({"switch": GOOD["switch"] | {"loopback": [[511]]}}, "^switch.loopback.*: Expected `int` <= 510"),
        ({"switch": GOOD["switch"] | {"loopback": [[68], []]}}, r"^switch.loopback\[1\]: name at least one port"),
        ({"switch": GOOD["switch"] | {"loopback": [[68, 68]]}}, r"^switch.loopback\[0\]: a port stands there twice"),
        (
            {"switch": GOOD["switch"] | {"loopback": [[68], [7]]}},
            r"^switch.loopback\[1\]: 10\.77\.0\.2 is on port 7; choose ports that no cable leaves by",
        ),
        ({"host": []}, r"^host: Expected `array` of length >= 1"),
        ({"hosts": []}, "^the file: Object contains unknown field `hosts`"),
        ({"switch": {"address": "10.77.0.254"}}, "^switch: there is no mac in it; see p4/README.md"),
        ({"switch": GOOD["switch"] | {"address": "::1"}}, "^switch.address: '::1' is no IPv4 address"),
        ({"switch": GOOD["switch"] | {"mac": "2:0:a"}}, "^switch.mac: '2:0:a' is no Ethernet address; write it like"),
        (
            {"switch": GOOD["switch"] | {"address": "0.0.0.0"}},
            "^switch.address: '0.0.0.0' is the address of no machine",
        ),
        (
            {"host": [GOOD["host"][0] | {"address": "239.1.1.1"}]},
            r"^host\[0\].address: '239.1.1.1' is the address of no",
        ),
        (
            {"host": [GOOD["host"][0] | {"address": "255.255.255.255"}]},
            "'255.255.255.255' is the address of no machine",
        ),
        ({"switch": GOOD["switch"] | {"mac": "01:00:5e:00:00:01"}}, "^switch.mac: '01:00:5e:00:00:01' is the Ethernet"),
        (
            {"host": [GOOD["host"][0] | {"mac": "ff:ff:ff:ff:ff:ff"}]},
            "'ff:ff:ff:ff:ff:ff' is the Ethernet address of no",
        ),
        (
            {"host": [GOOD["host"][0] | {"mac": "00:00:00:00:00:00"}]},
            "'00:00:00:00:00:00' is the Ethernet address of no",
        ),
        ({"switch": GOOD["switch"] | {"data_port": 0}}, "^switch.data_port: Expected `int` >= 1"),
        ({"switch": GOOD["switch"] | {"port": 0}}, "^switch: Object contains unknown field `port`"),
        ({"host": [GOOD["host"][0] | {"port": 511}]}, r"^host\[0\]\.port: Expected `int` <= 510"),
        ({"host": [GOOD["host"][0] | {"port": True}]}, r"^host\[0\]\.port: Expected `int`, got `bool`"),
        ({"host": [GOOD["host"][0], GOOD["host"][0]]}, "same address"),
        ({"host": [GOOD["host"][0] | {"mac": "02:00:0a:4d:00:fe"}]}, "same mac"),
    ],
)
def test_what_cannot_be_is_refused_and_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(NetworkError, match=says):
        network_from(GOOD | change)


@pytest.mark.parametrize(("table", "says"), [("switch", r"no \[switch\] in it"), ("host", r"no \[\[host\]\] in it")])
def test_a_table_that_is_missing_is_named_as_it_is_written(table: str, says: str) -> None:
    with pytest.raises(NetworkError, match=rf"^the file: there is {says}; see p4/README\.md"):
        network_from({name: value for name, value in GOOD.items() if name != table})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"cannot read .*missing\.toml"):
        read_network(tmp_path / "missing.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("switch = ")
    with pytest.raises(NetworkError, match=r"bad\.toml is no TOML"):
        read_network(bad)
