"""Results of the papers beside ours, figure by figure: with what is left out, and at what scale ours is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure, table or theorem of a paper. ``ours``: the experiment or test that has it, or why there is none."""

    paper: str
    what: str
    ours: str
    scale: str
    verdict: str


NATURAL, MEMORY = "Horvath et al. 2019, natural compression", "Stich et al. 2018, SGD with memory"
TERNGRAD, SMOOTH = "Wen et al. 2017, TernGrad", "Wang, Safaryan, Richtarik 2021, smoothness-aware"
YES, SMALLER, PART, NO = "shown", "shown, smaller", "in part", "not shown"

SHOWN = (
    Shown(NATURAL, "theorem 1: w = 1/8", "`second-moment`", "all mantissas of 10 bits; the encoder that ships", YES),
    Shown(NATURAL, "two-way compression by a switch", "`re-encoding`, `end-to-end`", "4 workers, loopback", SMALLER),
    Shown(NATURAL, "natural dithering, its variance against standard", "`natural-dithering`, `dithering-variance`",
          "d = 100,000", YES),
    Shown(NATURAL, "theorem 9: noise terms", "`noise`", "logistic regression, d = 64, 2 to 8 workers", SMALLER),
    Shown(NATURAL, "table 1: bits and iterations together", "`compressors`", "counted bits, measured w", YES),
    Shown(NATURAL, "bits against variance", "`compressors`", "d = 4,096", YES),
    Shown(NATURAL, "section 3.3: iterations against (w_W + 1)(w_M + 1)", "`two-way-iterations`",
          "a quadratic, d = 512, 4 workers", SMALLER),
    Shown(NATURAL, "training of ResNet, VGG, AlexNet on CIFAR-10: accuracy and time",
          "`inagg bench training --task cifar`; `end-to-end`, `digits`",
          "a ResNet of 304,154 parameters, 4 workers, made pictures (or CIFAR-10's files); a CNN on digits", PART),
    Shown(NATURAL, "times on ImageNet", "none", "", NO),
    Shown(MEMORY, "theorem 2.4, figure 2: top-k against SGD", "`mem-sgd`", "digits, d = 64, 200,000 steps", SMALLER),
    Shown(MEMORY, "rand-k, ultra-sparsification, QSGD beside them", "`mem-sgd`, `mem-sgd-sparse`",
          "the same, and sparse documents", SMALLER),
    Shown(MEMORY, "RCV1 (m = 677,399, d = 47,236); the delay a = d/k and gamma", "`mem-sgd-sparse`",
          "2,000 documents made as RCV1's, d = 1,024; RCV1 itself where `--data` gives it", SMALLER),
    Shown(MEMORY, "remark 2.6: steps in proportion to d/k", "`mem-sgd-sparse`", "d/k = 16 to 128", YES),
    Shown(MEMORY, "epsilon (m = 400,000, d = 2,000, dense)", "`parallel-mem-sgd`",
          "2,000 dense rows made here, d = 2,000; a file where `--data` gives it", PART),
    Shown(MEMORY, "figure 4: Parallel-Mem-SGD, 24 cores", "`parallel-mem-sgd`", "the cores of this machine", SMALLER),
    Shown(TERNGRAD, "accuracy of SGD, 2 to 16 workers", "`terngrad`", "an MLP of 9,610 parameters, digits", SMALLER),
    Shown(TERNGRAD, "2 N + 1 levels of a sum", "`terngrad`", "2, 4 and 16 workers", YES),
    Shown(TERNGRAD, "Adam; layer-wise and clipping ablations; a CNN", "`terngrad`", "4 workers, digits", SMALLER),
    Shown(TERNGRAD, "AlexNet and GoogLeNet on ImageNet", "none", "", NO),
    Shown(TERNGRAD, "the performance model", "`inagg advise`", "fitted to this machine", PART),
    Shown(SMOOTH, "section 4: DIANA+ with varying steps", "`diana`", "quadratics, d = 64", YES),
    Shown(SMOOTH, "section 5: block quantization", "`block-quantization`", "d up to 8,192; with its control", YES),
    Shown(SMOOTH, "section 6: logistic regression, ridge", "`smoothness`", "digits, d = 64, 4 workers", SMALLER),
    Shown(SMOOTH, "LIBSVM data", "`smoothness`, `smoothness-workers`",
          "4,000 people made as a9a's, d = 123; files where `--data` gives them", SMALLER),
    Shown(SMOOTH, "study in n, wall-clock", "`smoothness-workers`", "2 to 16 workers in one process, 2 through the "
          "switch", SMALLER),
)  # fmt: skip


def table() -> str:
    """Return `SHOWN` as Markdown."""
    rows = [f"| {s.paper} | {s.what} | {s.ours} | {s.scale} | {s.verdict} |" for s in SHOWN]
    return "\n".join(["| paper | figure, table or theorem | ours | scale | verdict |", "|---|---|---|---|---|", *rows])
