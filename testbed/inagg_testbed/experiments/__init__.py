"""The papers' claims, carried out at the scale of one machine: `inagg experiment NAME`."""

import os

# Before anything here imports numpy: arrays this small gain nothing from BLAS threads, which on a busy machine wait for
# one another, and a sum's last bits would depend on the number of cores.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
