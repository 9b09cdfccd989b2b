"""What others are told of an error."""

from __future__ import annotations

import pytest

from inagg_host.errors import BRIEF_CHARS, brief


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("no room", "no room"),
        ("CUDA error: out of memory\nSearch for `cudaError'\nCompile with", "CUDA error: out of memory"),
        ("\nError(s) in loading:\n\tMissing key: a\n\tMissing key: b", "Error(s) in loading: Missing key: a"),
        ("x" * BRIEF_CHARS, "x" * BRIEF_CHARS),
        ("x" * (BRIEF_CHARS + 1), "x" * (BRIEF_CHARS - 4) + " ..."),
    ],
)
def test_others_are_told_the_first_line_or_the_one_that_it_announces(text: str, told: str) -> None:
    assert brief(text) == told
