"""An option that names a folder which a command makes where it is not there."""

from __future__ import annotations

from typing import Any

import click

from inagg_switch.cli.new_files import NewFolder


class NewSubfolder(NewFolder):
    """A folder to write files into, which is there, or whose own folder is: another is more likely a slip of who types
    than a wish for two new ones, as `NewFile` has it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        above = path.absolute().parent
        if not above.is_dir():
            self.fail(f"{value}: there is no folder {above} to make it in", param, ctx)
        return path
