"""The papers' claims, carried out at the scale of one machine: `inagg experiment NAME`."""
