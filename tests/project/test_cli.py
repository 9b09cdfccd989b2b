"""The command `inagg`: lazy subcommands, and what it says and returns when something is wrong."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import click
import pytest

from inagg_testbed import cli


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `inagg subject ...`, where `subject` is a command that is given as a function."""

    def run(body: Callable[[], object], *arguments: str) -> int:
        monkeypatch.setattr(sys.modules[__name__], "subject", click.command()(body), raising=False)
        monkeypatch.setitem(sys.modules, "test_cli_subject", sys.modules[__name__])
        root = cli.make_root({"subject": cli.Entry("test_cli_subject:subject", "A command.")})
        return cli.run(root, ["subject", *arguments])

    return run


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(cli.make_root(cli.COMMANDS), ["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert f"  {name} " in shown
        assert entry.help in shown


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from inagg_testbed.cli import main; sys.argv = ['inagg', '--help']; status = main();"
        "heavy = {'numpy', 'numba', 'grpc', 'torch', 'scapy', 'rich', 'inagg_switch', 'inagg_host'};"
        "print('imported:', sorted(heavy & set(sys.modules)), 'status:', status)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("imported: [] status: 0\n")


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(cli.make_root(cli.COMMANDS), ["--version"]) == 0
    assert capsys.readouterr().out == f"inagg {importlib.metadata.version('inagg')}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_listed_command_loads(name: str) -> None:
    root = cli.make_root(cli.COMMANDS)
    assert root.get_command(click.Context(root), name) is not None


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(cli.make_root({}), ["nope"]) == cli.EXIT_USAGE
    assert "No such command 'nope'" in capsys.readouterr().err


def test_a_command_that_returns_nothing_succeeds(run_command: Callable[..., int]) -> None:
    assert run_command(lambda: None) == 0


def test_the_status_that_a_command_returns_is_the_exit_status(run_command: Callable[..., int]) -> None:
    assert run_command(lambda: 7) == 7


def test_a_missing_extra_is_named(run_command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> NoReturn:
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")

    assert run_command(body) == cli.EXIT_USAGE
    assert "pip install 'inagg[torch]'" in capsys.readouterr().err


def test_a_missing_extra_is_named_when_the_command_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # `import sklearn` now fails
    root = cli.make_root({"subject": cli.Entry("sklearn:subject", "A command.")})
    assert cli.run(root, ["subject"]) == cli.EXIT_USAGE
    assert "pip install 'inagg[testbed]'" in capsys.readouterr().err


def test_a_missing_module_of_ours_is_not_blamed_on_an_extra() -> None:
    root = cli.make_root({"subject": cli.Entry("inagg_testbed.no_such_module:subject", "A command.")})
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        cli.run(root, ["subject"])


def test_a_table_entry_that_is_no_command_is_an_error() -> None:
    root = cli.make_root({"subject": cli.Entry("inagg_testbed.cli:EXIT_USAGE", "A number.")})
    with pytest.raises(TypeError, match="not a click command but int"):
        cli.run(root, ["subject"])


def test_ctrl_c_ends_with_130_and_no_traceback(
    run_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> NoReturn:
        raise KeyboardInterrupt

    assert run_command(body) == cli.EXIT_INTERRUPTED == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_refused_confirmation_is_an_error_and_no_interrupt(run_command: Callable[..., int]) -> None:
    def body() -> NoReturn:
        raise click.Abort

    assert run_command(body) == cli.EXIT_ERROR


def test_a_full_disk_is_said_in_one_line(run_command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> NoReturn:
        with open("/dev/full", "w") as full:
            full.write("what was asked for")
            full.flush()
        raise AssertionError

    assert run_command(body) == cli.EXIT_ERROR
    assert capsys.readouterr().err == "Error: there is no space left, to write what was asked for\n"


def test_other_errors_keep_their_traceback(run_command: Callable[..., int]) -> None:
    def body() -> NoReturn:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        run_command(body)
