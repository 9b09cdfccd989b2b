"""What is wrong with an option is said in a line, before any work begins."""

from __future__ import annotations

import socket
import time

import click
import pytest
from click.testing import CliRunner

from inagg.cli import COMMANDS, make_root
from inagg_switch.cli.commands import switch
from inagg_switch.cli.switch_options import SHARDS_MAX
from inagg_testbed.bench.options import counts
from inagg_testbed.switch_process import SwitchProcess


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("testbed --loss nan -- true", "'--loss': nan is no number"),
        ("testbed --loss 2 -- true", "'--loss': 2.0 is not in the range"),
        ("testbed --record /nosuch/x -- true", "'--record': /nosuch/x: there is no folder /nosuch to write into"),
        ("testbed --web 0.0.0.0:1 -- true", "a testbed is for this machine"),
        ("demo --web 0.0.0.0:1", "a testbed is for this machine"),
        ("testbed --web here:x -- true", "'x' is no port"),
        ("demo --record /nosuch/x", "'--record': /nosuch/x: there is no folder /nosuch to write into"),
        ("demo --report /nosuch/x", "'--report': /nosuch/x: there is no folder /nosuch to write into"),
        ("demo --report /proc/x", "'--report': /proc/x: cannot write into /proc"),
        ("demo --report /dev/null", "'--report': /dev/null: a file would take the place of what is there"),
        ("bench allreduce --report /nosuch/x", "'--report': /nosuch/x: there is no folder /nosuch to write into"),
        ("bench training --report /nosuch/x", "'--report': /nosuch/x: there is no folder /nosuch to write into"),
        ("advise --check --report /nosuch/x", "'--report': /nosuch/x: there is no folder /nosuch to write into"),
        ("bench step --report /proc/x", "'--report': /proc/x: cannot write into /proc"),
        ("bench overlap --trace-dir /proc/x", "'--trace-dir': /proc/x: cannot write into /proc"),
        ("experiment noise --out /proc/x", "'--out': /proc/x: cannot write into /proc"),
        ("switch --capture /proc/x", "'--capture': /proc/x: cannot write into /proc"),
        ("switch --ready-file /dev/null", "'--ready-file': /dev/null: a file would take the place"),
        ("bench allreduce --window -1", "'--window': -1 is not in the range"),
        ("bench allreduce --window 999999", "'--window': 999999 is not in the range"),
        ("bench allreduce --loss 2", "'--loss': 2.0 is not in the range"),
        ("bench allreduce --loss 1", "'--loss': 1.0 is not in the range"),
        ("bench allreduce --seconds -1", "'--seconds': -1.0 is not in the range"),
        ("bench switch --seconds nan", "'--seconds': nan is no number"),
        ("testbed --link fast -- true", "'--link': 'fast' is no rate of a link: give 100mbit"),
        ("testbed up --link 0gbit", "'--link': '0gbit': a link without a rate is none"),
        ("demo --link fast", "'--link': 'fast' is no rate of a link"),
        ("demo --target soft", "'soft' is not one of 'software', 'bmv2'"),
        ("bench allreduce --link fast", "'--link': 'fast' is no rate of a link"),
        ("bench hosts --link fast", "no rate of a link"),
        ("bench sharing --link fast", "no rate of a link"),
        ("advise --link 0gbit", "'0gbit': a link without a rate is none"),
        ("advise --compute-ms -5", "'--compute-ms': -5.0 is not in the range"),
        ("advise --compute-ms nan", "'--compute-ms': nan is no number"),
        ("advise --compute-ms inf", "'--compute-ms': inf is not finite"),
        ("advise --check --link 10gbit", "--link is for predictions, not for --check"),
        ("advise --runs 2", "--runs goes with --check"),
        ("bench switch --seconds 1e999", "'--seconds': 1e999 is not finite"),
        ("bench switch --workers 2,3 --lanes 7", "--lanes: 7 lanes: nat8 for 2 workers"),
        ("bench switch --shards 2000", "'--shards': 2000: one switch has 1 to 1024 shards"),
        ("bench switch --shards 1,0", "'--shards': 1,0: one switch has 1 to 1024 shards"),
        ("bench switch --workers 33", "'--workers': 33: one switch has 1 to 32 workers"),
        ("bench allreduce --shards 1025", "'--shards': 1025 is not in the range"),
        ("bench switch --window 0", "'--window': 0 is not in the range"),
        ("bench allreduce --size infK", "'--size': 'infK': give numbers such as 1K,64M"),
        ("bench allreduce --workers 4,2 --racks 3", "3 racks for 2 workers: each needs one"),
        ("bench allreduce --lanes 32 --racks 2", "--racks is without --loss, --way and --lanes"),
        ("bench allreduce --gpus 1", "--gpus is for --device cuda"),
        ("bench allreduce --device cuda --workers 2,4 --gpus 3", "--gpus 3: there are 2 workers"),
        ("bench allreduce --device cuda --gpus 0", "'--gpus': 0 is not in the range"),
        ("bench switch --runs 1.5", "'--runs': '1.5' is not a valid integer."),
        ("bench bmv2 --lanes 9", "--lanes: no program adds up nat8 in 9 lanes: there are "),
        ("bench bmv2 --window -1", "'--window': -1 is not in the range"),
    ],
)
def test_a_wrong_value_is_refused_at_once(arguments: str, words: str) -> None:
    start_s = time.monotonic()
    done = CliRunner().invoke(make_root(COMMANDS), arguments.split())
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.output.split())
    assert time.monotonic() - start_s < 10


def test_shards_of_benchmarks_are_as_many_as_a_switch_can_have() -> None:
    (option,) = (parameter for parameter in switch.params if parameter.name == "shards")
    assert isinstance(option.type, click.IntRange)
    most = option.type.max
    of_shards = counts("shards", SHARDS_MAX)
    assert of_shards.convert(f"33,{most}", None, None) == [33, most]
    done = CliRunner().invoke(make_root(COMMANDS), ["bench", "switch", "--help"])
    assert "--shards SHARDS" in done.output


@pytest.mark.parametrize("command", ["testbed --record= -- true", "bench allreduce --report=", "demo --report="])
def test_a_file_without_a_name_is_refused(command: str) -> None:
    done = CliRunner().invoke(make_root(COMMANDS), command.split())
    assert done.exit_code == 2
    assert "no file is named" in done.output


@pytest.mark.parametrize("command", ["testbed", "testbed up", "demo"])
def test_a_port_in_use_is_told_before_anything_starts(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        rest = {"testbed": ["--", "true"], "testbed up": ["--name", "taken"], "demo": []}[command]
        done = CliRunner().invoke(make_root(COMMANDS), [*command.split(), "--web", address, *rest])
    assert done.exit_code == 1
    assert f"cannot serve the live view on {address}: Address already in use" in done.output


def test_a_switch_that_does_not_start_is_an_error_that_says_why() -> None:
    with pytest.raises(click.ClickException, match=r"(?s)the switch did not start:.*--slots"):
        SwitchProcess("--slots", "3")
