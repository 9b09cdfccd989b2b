"""What the pages name is there: commands, options, choices, make targets, extras, variables, tests."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import click
import pytest

from inagg_docs import blocks, options
from inagg_docs.commands import every_command
from inagg_docs.tree import ROOT
from inagg_host.config import VARIABLES

TEXTS = blocks.texts()
BLOCKS = blocks.blocks()
COMMANDS = {tuple(name.split()[1:]): context for name, context in every_command()}
PLACEHOLDER = re.compile(r"[A-Z][A-Z_:./=]*|\.\.\.")
OURS = {
    option
    for context in COMMANDS.values()
    for parameter in context.command.get_params(context)
    for option in (*parameter.opts, *parameter.secondary_opts)
}
OTHERS = {
    "--check": "our generators",
    "--keep": "p4/tofino/fit.py",
    "--write": "p4/tofino/fit.py",
    "--strict": "mypy",
    "--nnodes": "torchrun",
    "--rdzv-backend": "torchrun",
    "--rdzv-conf": "torchrun",
    "--standalone": "torchrun",
    "--max-restarts": "torchrun",
    "--soak": "tests.host.sim",
}
every_text = pytest.mark.parametrize("file", sorted(TEXTS))


def shell_of(file: str) -> Iterator[str]:
    """Blocks of commands, and code in the running text that is a command."""
    yield from (block.text for block in BLOCKS if block.file == file and block.language == "sh")
    yield from (span for span in blocks.spans(TEXTS[file]) if re.match(r"(sudo |INAGG_\w+=\S+ )?inagg\b", span))


def check(words: list[str]) -> None:
    """Raises click.UsageError if there is no such command or option, or an option takes no such value."""
    path: tuple[str, ...] = ()
    while isinstance(COMMANDS[path].command, click.Group) and words and (*path, words[0]) in COMMANDS:
        path, words = (*path, words[0]), words[1:]
    context = COMMANDS[path]
    if isinstance(context.command, click.Group) and words and not words[0].startswith("-"):
        raise click.UsageError(f"no command {' '.join((*path, words[0]))}")
    if path == ("testbed",) and words:  # without a subcommand it is `run`
        context = COMMANDS["testbed", "run"]
    rest = words[: words.index("--")] if "--" in words else words
    parser = context.command.make_parser(context)
    try:
        given, _, _ = parser.parse_args([*rest])
    except click.BadOptionUsage:
        given, _, _ = parser.parse_args([*rest, "VALUE"])  # `inagg x --option`, in the running text, names the option
    for parameter in context.command.get_params(context):
        value = given.get(parameter.name or "")
        for text in value if isinstance(value, list) else [value]:
            literal = isinstance(text, str) and not PLACEHOLDER.fullmatch(text)
            if (
                literal
                and isinstance(parameter, click.Option)
                and not isinstance(parameter.type, click.Path | click.File)
            ):
                parameter.type.convert(text, parameter, context)


@every_text
def test_commands_and_options_exist(file: str) -> None:
    for text in shell_of(file):
        for words in blocks.commands(text):
            try:
                check(words)
            except click.UsageError as error:
                pytest.fail(f"{file}: inagg {' '.join(words)}: {error.format_message()}")


@pytest.mark.parametrize(
    "text",
    [
        "inagg nope",
        "inagg jobs --nope",
        "inagg bench nope",
        "sudo inagg testbed --workers none",
        "true | inagg demo --format q",
    ],
)
def test_what_does_not_exist_is_found(text: str) -> None:
    (words,) = blocks.commands(text)
    with pytest.raises(click.UsageError):
        check(words)


@every_text
def test_options_named_in_the_text_exist(file: str) -> None:
    for span in blocks.spans(TEXTS[file]):
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
            assert option in OURS or option in OTHERS or not span.startswith(("inagg", "--")), f"{file}: `{span}`"


@every_text
def test_make_targets_exist(file: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    shell = [block.text for block in BLOCKS if block.file == file and block.language == "sh"]
    for text in [*shell, *blocks.spans(TEXTS[file])]:
        for target in re.findall(r"^make ([a-z0-9-]+)", text, re.M):
            assert target in targets, f"{file}: make {target}"


@every_text
def test_extras_exist(file: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"(?:inagg|\.)\[([a-z,]+)\]", TEXTS[file]):
        assert set(names.split(",")) <= set(extras), file


@every_text
def test_variables_exist(file: str) -> None:
    known = options.page()
    for variable in re.findall(r"\bINAGG_[A-Z_]+[A-Z]\b", TEXTS[file]):
        assert f"{variable} |" in known, f"{file}: {variable}"


def test_the_options_page_has_every_variable_of_the_worker() -> None:
    page = options.page()
    sources = "".join(path.read_text() for path in (ROOT / "host").rglob("*.py"))
    for variable in set(re.findall(r"\bINAGG_[A-Z_]+[A-Z]\b", sources)) | set(VARIABLES.values()):
        assert f"| {variable} |" in page


def test_a_block_says_what_it_is() -> None:
    for block in BLOCKS:
        assert block.language in {"python", "sh", "toml", "text", "~text"}, block.place
        assert block.run or block.run_by or block.why_not, f"{block.place}: {block.comment}"
        if block.run_by:
            assert (ROOT / block.run_by).exists(), f"{block.place}: {block.run_by}"


def test_blocks_fit_a_terminal_of_80_columns() -> None:
    for block in BLOCKS:
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            assert len(line) <= 80, f"{block.file}:{number}: {line}"


def test_commands_stand_in_blocks_that_are_checked() -> None:
    for file, text in TEXTS.items():
        for line in text.splitlines():
            assert not re.match(r"    (sudo |python |make |pip |inagg )", line) or "```" not in text, f"{file}: {line}"
