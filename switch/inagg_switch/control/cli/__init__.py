"""What the commands `inagg switch`, `jobs`, `top` and `why` do; `inagg_switch.cli` has their options and help."""
