"""Docstrings say what they are of: who sees one without its name and type, as in an editor, is to understand it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("host", "switch", "protos", "command", "testbed")
WITHOUT_SUBJECT = frozenset({"As", "By", "For", "Of", "That", "Those", "What", "Which", "Who"})
"""First words of docstrings that have no subject, as in "Of the first byte."; "Address of the first byte." has one."""


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """All texts that stand alone: of modules, classes, functions, and after what is assigned."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield text


def is_help(node: ast.AST) -> bool:
    """Whether the docstring of a function is a help text of click, which has the command's name before it."""
    decorators = getattr(node, "decorator_list", [])
    return any("command" in ast.unparse(decorator) or "group" in ast.unparse(decorator) for decorator in decorators)


def without_subject(source: str) -> list[tuple[int, str]]:
    tree = ast.parse(source)
    helps = {id(text) for node in ast.walk(tree) if is_help(node) for text in docstrings(node)}
    found = []
    for text in docstrings(tree):
        words = str(text.value).split()
        if words and words[0].rstrip(",:") in WITHOUT_SUBJECT and id(text) not in helps:
            found.append((text.lineno, " ".join(words[:8])))
    return found


def test_docstrings_begin_with_what_they_are_of() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {words} ..."
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "_pb2" not in path.name
        for line, words in without_subject(path.read_text())
    ]
    assert not wrong, "begin with a noun, or of a function with a verb:\n" + "\n".join(wrong)


def test_the_check_finds_them_where_they_stand() -> None:
    source = '''
"""What a module has."""
LIMIT = 3
"""Of all."""

class Some:
    """A thing."""
    def of(self) -> int:
        """As `other`."""

@click.command()
def run() -> None:
    """What users see."""
'''
    assert [line for line, _ in without_subject(source)] == [2, 4, 9]
