"""What the papers show and what we do of it, figure by figure: with what is left out, and at what scale ours is."""

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
    Shown(NATURAL, "training of ResNet, VGG, AlexNet on CIFAR-10, ImageNet times", "`end-to-end`, `digits`",
          "a CNN of 71,754 parameters on handwritten digits", PART),
    Shown(MEMORY, "theorem 2.4, figure 2: top-k against SGD", "`mem-sgd`", "digits, d = 64, 200,000 steps", SMALLER),
    Shown(MEMORY, "rand-k, ultra-sparsification, QSGD beside them", "`mem-sgd`", "the same", SMALLER),
    Shown(MEMORY, "epsilon and RCV1 (d = 47,236); ablations of gamma and the shift", "none", "", NO),
    Shown(MEMORY, "figure 4: Parallel-Mem-SGD, 24 cores", "`parallel-mem-sgd`", "the cores of this machine", SMALLER),
    Shown(TERNGRAD, "accuracy of SGD, 2 to 16 workers", "`terngrad`", "an MLP of 9,610 parameters, digits", SMALLER),
    Shown(TERNGRAD, "2 N + 1 levels of a sum", "`terngrad`", "2, 4 and 16 workers", YES),
    Shown(TERNGRAD, "Adam; layer-wise and clipping ablations; a CNN", "`terngrad`", "4 workers, digits", SMALLER),
    Shown(TERNGRAD, "AlexNet and GoogLeNet on ImageNet", "none", "", NO),
    Shown(TERNGRAD, "the performance model", "`inagg advise`", "fitted to this machine", PART),
    Shown(SMOOTH, "section 4: DIANA+ with varying steps", "`diana`", "quadratics, d = 64", YES),
    Shown(SMOOTH, "section 5: block quantization", "`block-quantization`", "d up to 8,192; with its control", YES),
    Shown(SMOOTH, "section 6: logistic regression, ridge", "`smoothness`", "digits, d = 64, 4 workers", SMALLER),
    Shown(SMOOTH, "LIBSVM data, study in n, wall-clock", "none", "", NO),
)  # fmt: skip


def table() -> str:
    """As Markdown."""
    rows = [f"| {s.paper} | {s.what} | {s.ours} | {s.scale} | {s.verdict} |" for s in SHOWN]
    return "\n".join(["| paper | figure, table or theorem | ours | scale | verdict |", "|---|---|---|---|---|", *rows])
