"""Names of jobs that nobody has named: short ones, that people can say, type and tell apart."""

from __future__ import annotations

import re
import secrets
import sys
from pathlib import Path
from typing import Final

_FIRST: Final = """
agile amber ample apt arid azure bald bold brave brisk broad calm civic clear cool coral cosy crisp deep dry dusty
eager early easy fair fast fine firm fleet fond frank fresh full gentle giddy glad gold grand great green grey hale
happy hardy hazy huge icy idle ivory jade jolly keen kind large late lazy lean light lilac lime long loud lucky lunar
major mellow merry mild mint misty neat new nice noble odd old olive open pale peach pine pink plain plum polar proud
pure quick quiet rapid rare red ready rich ripe rosy round royal ruby rural sage shy silky slim slow small smart snowy
soft solar sound spare spry steep still sunny swift tall teal terse tidy tiny true vast vivid warm white wide wild
wise witty
"""
_SECOND: Final = """
ant ape asp auk bass bat bear bee bison boar bream buck bull calf camel carp cat clam cobra cod colt cow crab crane
crow cub deer dingo dodo dog dove duck eagle eel egret eland elk emu ewe falcon fawn finch fish flea fly foal fox frog
gecko gnu goat goose grebe gull hare hawk hen heron hippo horse hound hyena ibex ibis jay kiwi koala lamb lark lemur
lion llama loon lynx mole moose moth mouse mule newt ocelot okapi orca oryx otter owl ox panda perch pig pike pony
puma quail rabbit ram rat raven rhino robin rook seal shark sheep shrew skunk sloth snail snake stag stork swan tapir
tern tiger toad trout viper vole wasp whale wolf wombat worm wren yak zebra
"""
FIRST: Final = tuple(_FIRST.split())
SECOND: Final = tuple(_SECOND.split())
NUMBERS: Final = 1000
"""With both words some 17 million names: of 100 jobs of one script at once on a switch, with one chance in 3,000 two
draw the same, and the second is refused as one whose ranks have joined already."""


def nickname() -> str:
    """A name such as ``mint-otter-417``. Drawn: one rank draws it for all."""
    return f"{secrets.choice(FIRST)}-{secrets.choice(SECOND)}-{secrets.randbelow(NUMBERS)}"


def script_name(default: str) -> str:
    """Name of what this process runs, in characters that a job's may have: that of its file, of its folder for a
    package that is run; ``default`` where it is no file, as in an interactive interpreter. Processes that
    `multiprocessing` has started have their parent's."""
    path = Path(sys.argv[0] if sys.argv else "")
    name = path.parent.name if path.stem == "__main__" else path.stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")  # it begins with a letter or digit
    return name if path.suffix == ".py" and name else default
