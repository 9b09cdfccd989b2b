"""The commands `inagg bench ...`: a table of them; each is a click command, in the module that measures or in one of
its own."""

from __future__ import annotations

from inagg.lazy_group import Entry, LazyGroup

COMMANDS = {
    "allreduce": Entry(
        "inagg_testbed.bench.allreduce_command:allreduce", "The all-reduce, through a switch and through Gloo."
    ),
    "bmv2": Entry("inagg_testbed.bench.bmv2:bmv2", "A bmv2 switch that runs our P4 programs; needs root."),
    "hosts": Entry("inagg_testbed.bench.hosts_command:hosts", "Hosts of several ranks, with a link each; needs root."),
    "kernels": Entry("inagg_testbed.bench.kernels:kernels", "The host's kernels, against memory copy on one core."),
    "overlap": Entry("inagg_testbed.bench.overlap:overlap", "Gradients that travel while others are computed."),
    "recovery": Entry("inagg_testbed.bench.recovery_command:recovery", "How long training stands still after a kill."),
    "sharing": Entry("inagg_testbed.bench.sharing_command:sharing", "Jobs that share a link, or have TCP there."),
    "stages": Entry("inagg_testbed.bench.stages_command:stages", "What each stage of the software switch costs."),
    "step": Entry("inagg_testbed.bench.step_command:step", "A training step with the gradients of real networks."),
    "switch": Entry("inagg_testbed.bench.switch_command:switch", "The software switch, against processes that echo."),
    "training": Entry("inagg_testbed.bench.training_command:training", "Time to a loss, by ways to send fewer bytes."),
}

bench = LazyGroup(
    name="bench",
    entries=COMMANDS,
    no_args_is_help=True,
    help="""Measure how fast things are on this machine.

    Each prints a table, or lines of JSON (--json), and with --report FILE it writes a page, too. --seconds says how
    long each row is measured, --runs how often; a command has one of them, or both (`training` has --seeds).""",
)
