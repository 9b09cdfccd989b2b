"""The command `inagg replay`: what a switch once took in, given to a switch again, and what comes out compared."""
