"""The command `inagg`: lazy subcommands, and what it says and returns when something is wrong."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest

import inagg
from inagg import cli
from inagg.lazy_group import Entry
from inagg_link.jit_off import JitOff


@pytest.fixture
def run_command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `inagg subject ...`, where `subject` is a command that is given as a function."""

    def run(body: Callable[[], object], *arguments: str) -> int:
        monkeypatch.setattr(sys.modules[__name__], "subject", click.command()(body), raising=False)
        monkeypatch.setitem(sys.modules, "test_cli_subject", sys.modules[__name__])
        root = cli.make_root({"subject": Entry("test_cli_subject:subject", "A command.")})
        return cli.run(root, ["subject", *arguments])

    return run


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(cli.make_root(cli.COMMANDS), ["--help"]) == 0
    shown = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert f"  {name} " in shown
        assert entry.help in shown


def test_python_runs_it_as_a_module() -> None:
    """Where the script is not on the PATH."""
    command = [sys.executable, "-m", "inagg", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == f"inagg {version('inagg')}\n"


def test_a_script_that_takes_the_command_for_the_library_is_told_what_to_import() -> None:
    with pytest.raises(AttributeError, match=r"it is the command\. Scripts import from inagg_host"):
        _ = inagg.AllReduce


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from inagg.cli import main; sys.argv = ['inagg', '--help']; status = main();"
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
    assert "pip install '.[torch]'" in capsys.readouterr().err


def test_a_missing_extra_is_named_when_the_command_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # `import sklearn` now fails
    root = cli.make_root({"subject": Entry("sklearn:subject", "A command.")})
    assert cli.run(root, ["subject"]) == cli.EXIT_USAGE
    assert "pip install '.[testbed]'" in capsys.readouterr().err


def test_a_missing_module_of_ours_is_not_blamed_on_an_extra() -> None:
    root = cli.make_root({"subject": Entry("inagg_testbed.no_such_module:subject", "A command.")})
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        cli.run(root, ["subject"])


def test_a_table_entry_that_is_no_command_is_an_error() -> None:
    root = cli.make_root({"subject": Entry("inagg.cli:EXIT_USAGE", "A number.")})
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


def test_want_of_memory_is_said_in_one_line(
    run_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> NoReturn:
        raise MemoryError("unable to allocate 977 TiB")

    assert run_command(body) == cli.EXIT_ERROR
    assert capsys.readouterr().err == "Error: there is not enough memory: unable to allocate 977 TiB\n"


def test_a_compiler_that_is_off_is_said_in_one_line(
    run_command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> NoReturn:
        raise JitOff("NUMBA_DISABLE_JIT is set: unset it")

    assert run_command(body) == cli.EXIT_ERROR
    assert capsys.readouterr().err == "Error: NUMBA_DISABLE_JIT is set: unset it\n"


def test_what_else_cannot_be_imported_keeps_its_traceback(run_command: Callable[..., int]) -> None:
    def body() -> NoReturn:
        raise ImportError("a fault of ours")

    with pytest.raises(ImportError, match="a fault of ours"):
        run_command(body)


@pytest.fixture
def no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory that was removed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()


@pytest.mark.parametrize("words", ["switch", "doctor", "bench kernels", "warmup", "testbed -- true", "testbed up"])
def test_a_working_directory_that_was_removed_is_said_in_one_line(
    words: str, no_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(cli.make_root(cli.COMMANDS), words.split()) == cli.EXIT_ERROR
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("Error: the working directory was removed: change to one that exists")


@pytest.mark.parametrize("words", ["jobs --switch 127.0.0.1:1", "testbed down --name nobodys"])
def test_what_asks_a_switch_or_removes_a_testbed_needs_no_working_directory(
    words: str, no_folder: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.run(cli.make_root(cli.COMMANDS), words.split())
    assert "working directory" not in capsys.readouterr().err


@pytest.mark.parametrize("words", ["switch --help", "testbed up -h"])
def test_help_needs_no_working_directory(words: str, no_folder: None) -> None:
    assert cli.run(cli.make_root(cli.COMMANDS), words.split()) == 0


def test_other_errors_keep_their_traceback(run_command: Callable[..., int]) -> None:
    def body() -> NoReturn:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        run_command(body)


UNABLE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""A locale of 7 bits, which Python is told to take at its word."""


def run_process(
    tmp_path: Path, body: str, *arguments: str, before: Sequence[str] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """`inagg subject ...` in a process of its own, where `subject` does ``body``; ``before``: what starts it."""
    command = (
        f"import click, sys\n@click.command()\n@click.argument('text', default='')\ndef subject(text):\n    {body}\n"
    )
    (tmp_path / "cli_subject.py").write_text(command)
    script = (
        "import sys; from inagg import cli; "
        "cli.COMMANDS = {'subject': cli.Entry('cli_subject:subject', '')}; sys.exit(cli.main())"
    )
    environment = {**os.environ, **UNABLE, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command_line = [sys.executable, "-c", script, "subject", *arguments]
    return subprocess.run([*before, *command_line], capture_output=True, text=True, env=environment, **options)


def test_what_the_locale_cannot_show_is_escaped(tmp_path: Path) -> None:
    shown = run_process(tmp_path, r"print('for \xe9')")
    assert (shown.returncode, shown.stdout) == (0, "for \\xe9\n")


def test_an_argument_that_is_no_text_is_wrong_usage(tmp_path: Path) -> None:
    shown = run_process(tmp_path, "text.encode()", "é")
    assert shown.returncode == cli.EXIT_USAGE
    assert shown.stderr.startswith("Error: '\\udcc3\\udca9' cannot be read as text: ")


def test_a_closed_standard_output_is_as_dev_null(tmp_path: Path) -> None:
    body = "import os; sys.stdout.isatty(); print('nowhere'); print(os.readlink('/proc/self/fd/1'), file=sys.stderr)"
    shown = run_process(tmp_path, body, before=["sh", "-c", 'exec "$0" "$@" >&-'])
    assert (shown.returncode, shown.stderr) == (0, "/dev/null\n")
