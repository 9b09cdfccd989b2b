"""The reference of a worker's options: fields of `Config`, their variables, defaults and docstrings."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from inagg_host.config import VARIABLES

CONFIG: Final = Path(__file__).resolve().parents[2] / "host/inagg_host/config.py"

HEAD: Final = """\
# Options of a worker

Each option is an argument of `InaggState`, `Options` and `AllReduce`, or an environment variable; an argument wins, and
an empty variable is as one that is not set. All ranks of a job need the same, but `host` and the key files: what
differs is an error on all of them when the job begins. What PyTorch adds stands [below](#with-pytorch).

| argument | variable | default | meaning |
|---|---|---|---|
"""
WITH_PYTORCH: Final = """
## With PyTorch

Rank and number of workers are the process group's, and a job's name begins with what INAGG_JOB says (default: the
script's name).

| argument | variable | default | meaning |
|---|---|---|---|
"""
OF_PYTORCH: Final = (
    ("`min_bytes`", "INAGG_MIN_BYTES", "16384", "Smaller tensors go to the inner group, exactly. 0: none does."),
    ("`local_size`", "INAGG_LOCAL_SIZE", "1", "How many ranks each host has, one after the other, that sum inside of "
     "the host first; `auto`: as many as torchrun started there."),
    ("`reduce_scatter_format`", "INAGG_REDUCE_SCATTER_FORMAT", "as `format`", "Of reduce-scatters, with which FSDP2 "
     "sums gradients. Process groups alone have it."),
    ("`format`", "INAGG_FORMAT", "hook: nat8; backend: fix32", "As above."),
    ("`rejoin_limit_s`", "INAGG_REJOIN_LIMIT", "10", "As above. The job does not wait for a rank whose process "
     "was killed; after a restart of the switch, 30 s longer."),
    ("`timeout_s`", "INAGG_TIMEOUT", "the group's", "As above, and never longer than the group's."),
    ("", "INAGG_BLOCKING_WAIT", "0", "1 (or true, yes, on): `work.wait()` of a CUDA tensor makes the host wait, and "
     "raises what goes wrong."),
    ("", "INAGG_CUDA_INNER", "nccl", "What takes CUDA tensors that the switch does not: `gloo` where ranks share a "
     "GPU, which NCCL refuses."),
    ("", "INAGG_SUMMARY", "0", "1 (or true, yes, on): print counters to stderr when a group ends."),
)  # fmt: skip


def page() -> str:
    """The page, as Markdown."""
    rows = []
    (config,) = (node for node in ast.parse(CONFIG.read_text()).body if getattr(node, "name", "") == "Config")
    assert isinstance(config, ast.ClassDef)
    meaning = ""
    for node, after in zip(config.body, [*config.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign):
            continue
        assert isinstance(node.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split()).replace("``", "`")
        else:
            meaning = {"rank": "Of this process, from 0 on.", "workers": "How many ranks the job has."}.get(
                node.target.id, "The key of `certificate`: a file."
            )
        default = "needed" if node.value is None else f"`{ast.literal_eval(node.value)}`"
        rows.append(f"| `{node.target.id}` | {VARIABLES[node.target.id]} | {default} | {meaning} |\n")
    more = "".join(f"| {' | '.join(row)} |\n" for row in OF_PYTORCH)
    return HEAD + "".join(rows) + WITH_PYTORCH + more
