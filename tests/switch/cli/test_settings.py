"""What the options of `inagg switch` come to, and which of them cannot be."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import click
import pytest

from inagg.cli import COMMANDS, make_root, run
from inagg_link.faults import Faults
from inagg_switch.addresses import (
    NotYet,
    SettingsError,
    check_ports,
    data_address,
    is_unix,
    join_address,
    split_address,
)
from inagg_switch.cli.commands import switch
from inagg_switch.cli.ready import join_needs
from inagg_switch.cli.settings import Settings, settings_from
from inagg_switch.control.policy import Policy
from inagg_switch.defaults import WEB_ADDRESS


def settings(*arguments: str, secret: str | None = None) -> Settings:
    """The settings of a command line."""
    context = switch.make_context("switch", list(arguments))
    return settings_from(context.params, secret)


def test_files_are_known_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are read again, or written, when the working directory may have been removed."""
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("abc")
    asked = settings("--secret-file", "secret", "--record", "run.pcap")
    assert asked.security.secret_file == tmp_path / "secret"
    assert asked.software.record == tmp_path / "run.pcap"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1:5", ("10.0.0.1", 5)),
        ("10.0.0.1", ("10.0.0.1", 7)),
        ("name:0", ("name", 0)),
        ("[::1]:5", ("::1", 5)),
        ("[::1]", ("::1", 7)),
        ("::1", ("::1", 7)),
    ],
)
def test_addresses_are_split(text: str, found: tuple[str, int]) -> None:
    assert split_address(text, 7) == found


@pytest.mark.parametrize("text", ["", ":5", "host:", "host:x", "host:70000", "host:-1", "host:٣", "::1:47100"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="give"):
        split_address(text)


@pytest.mark.parametrize("address", [("10.0.0.1", 5), ("::1", 5)])
def test_addresses_are_joined_as_they_are_split(address: tuple[str, int]) -> None:
    assert split_address(join_address(*address)) == address


@pytest.mark.parametrize(
    ("listen", "data", "found"),
    [
        ("10.0.0.1:47100", None, ("10.0.0.1", 47101)),
        ("10.0.0.1:0", None, ("10.0.0.1", 0)),
        ("0.0.0.0:5", "10.0.0.1", ("10.0.0.1", 47101)),
        ("127.0.0.1:5", "10.0.0.1:9", ("10.0.0.1", 9)),
        ("localhost:5", "127.0.0.1:9", ("127.0.0.1", 9)),
        ("unix:/run/inagg", None, ("127.0.0.1", 47101)),
    ],
)
def test_data_go_where_control_is_unless_said_otherwise(listen: str, data: str | None, found: tuple[str, int]) -> None:
    assert data_address(listen, data) == found


def test_a_host_whose_name_begins_with_unix_is_no_socket() -> None:
    assert [is_unix(a) for a in ("unix:/run/inagg", "unix-abstract:inagg", "unixhost:47100")] == [True, True, False]


def test_a_name_becomes_an_address_as_data_planes_take_no_names() -> None:
    host, _ = data_address("localhost:5", None)
    assert host in ("127.0.0.1", "::1")


def test_a_name_that_nobody_knows_may_be_known_later() -> None:
    with pytest.raises(NotYet, match="give the address itself"):
        data_address("127.0.0.1:5", "no.such.host.invalid:1")


@pytest.mark.parametrize(
    "options",
    [
        ["--listen", "no.such.host.invalid:47100", "--insecure"],
        ["--tls-cert", "/not/yet.pem", "--tls-key", "/not/yet.key"],
        ["--client-ca", "/not/yet.pem", "--tls-cert", "/not/yet.pem", "--tls-key", "/not/yet.key"],
        ["--secret-file", "/not/yet"],
        ["--parent", "127.0.0.1:1", "--parent-ca", "/not/yet.pem"],
    ],
)
def test_what_may_come_later_is_no_wrong_usage(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With whose exit status deploy/systemd does not start it again."""
    assert run(make_root(COMMANDS), ["switch", "--listen", "127.0.0.1:0", *options]) == 1
    assert re.search("cannot read /not/yet|give the address itself", capsys.readouterr().err)


def test_shards_need_as_many_ports() -> None:
    check_ports(0, 1024)
    check_ports(65535, 1)
    with pytest.raises(SettingsError, match="they end at 65535"):
        check_ports(65535, 2)


def test_without_options_it_serves_this_machine() -> None:
    found = settings()
    assert found.listen == "127.0.0.1:47100"
    assert (found.software.host, found.software.port, found.software.shards) == ("127.0.0.1", 47101, 1)
    assert found.software.faults is None
    assert found.policy == Policy()
    assert found.metrics is None
    assert found.announce


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), "auto"),
        (("--multicast", "off"), "off"),
        (("--multicast", "239.192.0.0/16"), "239.192.0.0/16"),
        (
            ("--multicast", "239.192.0.0/16", "--listen", "0.0.0.0:0", "--insecure", "--data", "10.0.0.1"),
            "239.192.0.0/16",
        ),
        (("--multicast", "ff15::8000:0/112", "--listen", "[::1]:0"), "ff15::8000:0/112"),
        (("--multicast", "auto", "--loss", "0.1"), "auto"),
    ],
)
def test_results_are_multicast_as_asked_for(arguments: tuple[str, ...], found: str) -> None:
    assert settings(*arguments).software.multicast == found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--multicast", "on"), "--multicast: 'on' is neither 'auto' nor 'off' nor a prefix"),
        (("--multicast", "239.192.0.0/8"), "has host bits set"),
        (("--multicast", "239.0.0.0/8"), "no multicast prefix of 16 bits"),
        (("--multicast", "239.192.0.0/16", "--listen", "[::1]:0"), "needs an IPv4 address .* not ::1"),
        (("--multicast", "ff15::8000:0/112", "--listen", "127.0.0.1:0"), "needs an IPv6 address .* not 127.0.0.1"),
        (
            ("--multicast", "239.192.0.0/16", "--listen", "0.0.0.0:0", "--insecure"),
            "needs an IPv4 address .* not 0.0.0.0",
        ),
        (("--multicast", "239.192.0.0/16", "--loss", "0.1"), "faults do not go together"),
        (("--multicast", "off", "--target", "tofino"), "--multicast says nothing to --target tofino"),
    ],
)
def test_multicast_that_cannot_be_is_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings(*arguments)


@pytest.mark.parametrize(
    ("arguments", "datagram_bytes", "slots"),
    [
        ((), 13094, 8192),
        (("--listen", "[::1]:0"), 13094, 8192),
        (("--data", "10.0.0.1"), 1472, 65536),
        (("--listen", "0.0.0.0:0", "--insecure"), 1472, 65536),
        (("--datagram-bytes", "8972"), 8972, 16384),
        (("--datagram-bytes", "200", "--slots", "16"), 200, 16),
    ],
)
def test_datagrams_are_larger_than_a_frame_only_where_none_can_leave_the_machine(
    arguments: tuple[str, ...], datagram_bytes: int, slots: int
) -> None:
    found = settings(*arguments).software
    assert (found.datagram_bytes, found.slots) == (datagram_bytes, slots)


def test_metrics_without_a_value_are_on_loopback() -> None:
    assert settings("--metrics").metrics == "127.0.0.1:47099"
    assert settings("--metrics", "127.0.0.1:9").metrics == "127.0.0.1:9"


def test_the_live_view_without_a_value_is_on_loopback() -> None:
    assert settings().web is None
    assert settings("--web").web == WEB_ADDRESS
    assert settings("--web", "localhost").web == "localhost:47098"
    assert settings("--web", "fd:7").web == "fd:7"


def test_a_leaf_has_no_live_view() -> None:
    with pytest.raises(SettingsError, match="--web is for the root"):
        settings("--parent", "root", "--web")


def test_limits_are_those_of_the_policy() -> None:
    found = settings("--heartbeat-limit", "3", "--rejoin-limit", "0", "--jobs-max", "5")
    assert found.policy == Policy(heartbeat_limit_s=3, rejoin_limit_s=0, jobs_max=5)


def test_faults_get_a_seed_that_is_drawn_if_none_is_given() -> None:
    found = settings("--loss", "0.1", "--reorder", "0.2", "--fault-seed", "9")
    assert found.software.faults == Faults(drop=0.1, reorder=0.2)
    assert found.software.fault_seed == 9
    drawn = {settings("--loss", "0.1").software.fault_seed for _ in range(3)}
    assert len(drawn) > 1


def test_the_secret_is_that_of_the_file_or_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("of-the-file\n")
    assert settings(secret="of-the-environment").security.secret == "of-the-environment"
    found = settings("--secret-file", str(file), secret="of-the-environment").security
    assert found.secrets().by_name == {"": ("of-the-file",)}
    file.write_text("alice: a-secret\n")
    found = settings("--secret-file", str(file), secret="of-the-environment").security
    assert found.secrets().by_name == {"alice": ("a-secret",)}


def test_workers_are_told_that_they_need_a_secret_wherever_the_switch_has_its_from(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text("alice: a-secret\n")
    of_file, of_environment = settings("--secret-file", str(file)), settings(secret="s3cret")
    assert join_needs(of_file.security) == join_needs(of_environment.security) == ["INAGG_SECRET"]
    assert join_needs(settings().security) == []


def test_a_file_of_secrets_that_cannot_be_is_told_before_anything_is_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a: x y\n")
    with pytest.raises(SettingsError, match="without spaces"):
        settings("--secret-file", str(tmp_path / "secret"))


def test_operators_are_those_that_are_named_or_the_operator(tmp_path: Path) -> None:
    assert settings().security.operators == {"operator"}
    (tmp_path / "secrets").write_text("ann: 1\nben: 2\neve: 3\n")
    named = settings("--operator", "ann", "--operator", "ben", "--secret-file", str(tmp_path / "secrets"))
    assert named.security.operators == {"ann", "ben"}


@pytest.mark.parametrize("secret", [None, "one-for-all"])
def test_an_operator_is_refused_where_callers_have_no_names(secret: str | None) -> None:
    with pytest.raises(SettingsError, match="--operator says nothing where callers have no names"):
        settings("--operator", "ann", secret=secret)


@pytest.mark.parametrize("option", [("--drain", "20"), ("--operator", "ann")])
def test_what_the_root_of_a_tree_decides_is_refused_for_a_leaf(option: tuple[str, str]) -> None:
    with pytest.raises(SettingsError, match=f"{option[0]} is for the root of the tree"):
        settings("--parent", "10.0.0.1", "--data", "127.0.0.1", *option)


def test_a_leaf_may_have_metrics_of_its_own() -> None:
    assert settings("--parent", "127.0.0.1:9", "--metrics").metrics == "127.0.0.1:47099"


def test_running_jobs_get_twenty_seconds_to_end_unless_it_is_said() -> None:
    assert (settings().drain_s, settings("--drain", "0").drain_s) == (20.0, 0.0)


class Probe(socket.socket):
    """A socket that comes from 10.0.0.2, wherever it is connected to."""

    def connect(self, _: Any) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.2", 5000


def test_a_leaf_on_loopback_is_no_child_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = ("--parent", "10.0.0.1", "--data")
    monkeypatch.setattr(socket, "socket", Probe)
    with pytest.raises(SettingsError, match=r"nothing comes to it from 127\.0\.0\.1.*give --listen, or --data"):
        settings(*leaf, "127.0.0.1")
    assert settings(*leaf, "10.0.0.2").parent is not None
    assert settings("--parent", "10.0.0.2", "--data", "127.0.0.1").parent is not None, "it is this machine"


def test_a_parent_whose_name_is_not_known_yet_is_waited_for() -> None:
    assert settings("--parent", "not-there.invalid").parent is not None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--listen", "0.0.0.0:1"), "--insecure"),
        (("--metrics", "0.0.0.0:1"), "--insecure"),
        (("--web", "0.0.0.0:1"), "read the live view at 0.0.0.0:1"),
        (("--fault-seed", "1"), "nothing to seed"),
        (("--heartbeat-limit", "0.1"), "choose 0.2 to 86400"),
        (("--heartbeat-limit", "1e9"), "choose 0.2 to 86400"),
        (("--parent", "127.0.0.1"), "is this switch itself"),
        (("--listen", "[fe80::1%lo]:0", "--insecure"), "on one link alone"),
        (("--metrics", "127.0.0.1:47100"), "--listen and --metrics are both 127.0.0.1:47100: give each a port"),
        (("--metrics", "127.0.0.1:7", "--web", "127.0.0.1:7"), "--metrics and --web are both 127.0.0.1:7"),
        (("--listen", "localhost:7", "--web", "127.0.0.1:7"), "--listen and --web are both"),
        (("--listen", "127.0.0.1:7", "--web", "0.0.0.0:7", "--insecure"), "--listen and --web are both"),
        (("--listen", "unix:"), "--listen unix: names no socket"),
        (("--listen", "unix://"), "--listen unix: names no socket"),
        (("--listen", "here:99999"), "0 to 65535"),
        (("--listen", "49200"), "49200: give a host before the port, such as 127.0.0.1:49200"),
        (("--data", "49200"), "a host before the port"),
        (("--web", "49200"), "a host before the port"),
        (("--tls-cert", __file__), "--tls-key"),
        (("--client-ca", __file__), "--tls-cert"),
        (("--data", "127.0.0.1:65535", "--shards", "2"), "they end at 65535"),
    ],
)
def test_settings_that_cannot_be_say_what_to_change(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settings(*arguments)


def test_services_may_all_have_any_free_port() -> None:
    found = settings("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0")
    assert found.metrics == found.web == "127.0.0.1:0"
    assert settings("--listen", "127.0.0.1:7", "--metrics", "127.0.0.2:7").metrics == "127.0.0.2:7"


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--capture", "run.pcap", "--record", "run.pcap"), "--capture and --record"),
        (("--capture", "run.pcap", "--record", "same.pcap"), "--capture and --record"),
        (("--secret-file", "secret", "--ready-file", "secret"), "--ready-file and --secret-file"),
        (("--secret-file", "secret", "--record", "link"), "--record and --secret-file"),
        (("--ready-file", "run.pcap", "--record", "run.pcap"), "--ready-file and --record"),
        (("--capture", "m.shard1.pcap", "--record", "m.pcap", "--shards", "2"), "--capture and --record"),
        (("--capture", "m.pcap", "--record", "m.start2.pcap"), "--capture and --record"),
        (("--tls-cert", "secret", "--tls-key", "secret", "--ready-file", "secret"), "--ready-file and --tls-cert"),
        (("--parent", "127.0.0.9", "--parent-ca", "secret", "--capture", "secret"), "--capture and --parent-ca"),
        (("--target", "bmv2", "--network", "secret", "--ready-file", "secret"), "--ready-file and --network"),
        (("--listen", "unix:run.pcap", "--record", "run.pcap"), "--listen and --record"),
    ],
)
def test_a_file_that_another_option_names_is_not_written(
    arguments: tuple[str, ...], options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("abc")
    Path("link").symlink_to("secret")
    Path("same.pcap").symlink_to("run.pcap")
    with pytest.raises(SettingsError, match=f"{options} are the same file.*give each a file of its own"):
        settings(*arguments)
    assert Path("secret").read_text() == "abc"


def test_files_that_only_look_alike_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = settings("--capture", "m.shard1.pcap", "--record", "m.pcap", "--ready-file", "m.shard1.json")
    assert found.software.record == tmp_path / "m.pcap"


def test_a_file_may_be_read_for_two_purposes(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.touch()
    with pytest.raises(SettingsError, match="holds no certificate in PEM"):
        settings("--tls-cert", str(both), "--tls-key", str(both), "--client-ca", str(both))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--slots", "1000"),
        ("--slots", "1"),
        ("--loss", "1.1"),
        ("--loss", "nan"),
        ("--drain", "-1"),
        ("--drain", "inf"),
        ("--heartbeat-limit", "0"),
        ("--shards", "0"),
        ("--datagram-bytes", "10"),
    ],
)
def test_values_that_no_switch_can_have_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter):
        settings(*arguments)


def test_each_shard_captures_to_a_file_of_its_own(tmp_path: Path) -> None:
    config: Any = settings("--capture", str(tmp_path / "run.pcap"), "--shards", "2").software
    assert [config.capture_of(i).name for i in range(2)] == ["run.pcap", "run.shard1.pcap"]
