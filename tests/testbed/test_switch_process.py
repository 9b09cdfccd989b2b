"""A switch in a process of its own, for tests and benchmarks: where it says that it is."""

from __future__ import annotations

from inagg_switch.addresses import split_address
from inagg_testbed.switch_process import SwitchProcess


def test_addresses_of_ipv6_have_brackets() -> None:
    with SwitchProcess(control="[::1]:0", data="[::1]:0") as switch:
        assert switch.data.startswith("[::1]:")
        assert split_address(switch.data)[0] == split_address(switch.control)[0] == "::1"
