"""The commands of the switch. `commands` and `switch_options` have their options and help; what each does has a file of
its own: `serve` (inagg switch), `jobs_command`, `top`, `why`.
"""
