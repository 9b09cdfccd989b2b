"""The interface of a compressor: bytes for a vector, the bound that it promises, what the sum over workers needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from .key import Key

Floats = npt.NDArray[Any]
"""A 1-D array of float32 or float64."""
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
State = dict[str, npt.NDArray[Any]]
"""A compressor's memory of one tensor, by name. Belongs to the caller, who stores and restores it."""


class Aggregation(Enum):
    """How the vectors of all workers become their sum."""

    SUM = "sum"
    """The switch sums all lanes: a dense vector in a number format."""
    DENSE_BLOCK = "dense-block"
    """The switch sums a short dense vector: all workers chose the same coordinates."""
    SPARSE_BLOCKS = "sparse-blocks"
    """The switch sums the blocks that some worker has; first the workers agree which."""
    GATHER = "gather"
    """The switch cannot sum it. Each worker gets the bytes of all others through the inner group, and sums itself."""


# --- what a compressor promises ---


@dataclass(frozen=True, slots=True)
class Unbiased:
    """B(w): E C(x) = x and E|C(x) - x|^2 <= ``w`` |x|^2 (Horvath et al. 2019)."""

    w: float


@dataclass(frozen=True, slots=True)
class Contraction:
    """E|C(x) - x|^2 <= (1 - ``kept``) |x|^2, with 0 < ``kept`` <= 1 (Stich et al. 2018, k-contraction: k/d)."""

    kept: float


@dataclass(frozen=True, slots=True)
class NoBound:
    """Neither; ``why`` says what is missing."""

    why: str


Bound = Unbiased | Contraction | NoBound


class Compressor(ABC):
    """A map C from vectors to vectors that few bytes describe. Without state of its own; equal if its settings are.

    A compressor of one's own needs `bound`, `compress` and `decompress`; it then goes through a gather. To be summed in
    the switch it says so in `aggregation` and `formats`. Then it says what of a vector travels: `blocks`, `where` and
    `kept`; and as which numbers: `scale`, `to_sum` and `from_sum`. By default that is all of it, as it is.

    Vectors are 1-D float32 or float64 arrays. All noise comes from the key. Nothing that comes in is changed.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """The name with its settings, the same in every process: a checkpoint tells by it whose memory it has.

        (Dataclasses have one of their own, and what follows, too.)
        """
        settings = getattr(self, "__dict__", {})
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def aggregation(self) -> Aggregation:
        """The way in which sums over workers are made."""
        return Aggregation.GATHER

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the job formats in which the switch can sum it, the usual one first; none for a gather."""
        return ()

    @abstractmethod
    def bound(self, d: int) -> Bound:
        """The promise for vectors of ``d`` elements."""

    @abstractmethod
    def compress(self, x: Floats, key: Key) -> bytes:
        """C(x) as bytes: what a worker would send. Values must be finite."""

    @abstractmethod
    def decompress(self, data: bytes, d: int, dtype: npt.DTypeLike) -> Floats:
        """The vector of ``d`` elements of ``dtype`` that `compress` has written. Raises ValueError for other bytes."""

    def __call__(self, x: Floats, key: Key) -> Floats:
        """C(x)."""
        return self.decompress(self.compress(x, key), x.size, x.dtype)

    # --- through the switch: which coordinates, then which numbers ---

    def blocks(self, x: Floats) -> Mask | None:
        """Mask of the blocks of ``x`` that this worker has, to be united with the others'; None: there are none."""
        return None

    def where(self, d: int, key: Key, union: Mask | None = None) -> Indices | None:
        """The coordinates that travel, ascending, the same on all workers: None for all. ``union``: of all `blocks`."""
        return None

    def kept(self, x: Floats, where: Indices) -> Floats:
        """The values at these coordinates."""
        values: Floats = x[where]
        return values

    def spread(self, values: Floats, where: Indices | None, d: int) -> Floats:
        """The vector of ``d`` elements with ``values`` at these coordinates."""
        return values if where is None else scatter(values, where, d)

    def scale(self, x: Floats) -> float | None:
        """A number whose maximum over all workers `to_sum` and `from_sum` must be told; None if they need none.

        ``x`` are the values that travel. The maximum is rounded up to 9 bits (`inagg_wire.scale`).
        """
        return None

    def to_sum(self, x: Floats, key: Key, scale: float | None = None) -> Floats:
        """The numbers that the switch is to sum for the values ``x``, as many. ``scale``: the agreed one.

        The switch rounds them to the levels of the job's format, without bias.
        """
        return x

    def from_sum(self, sums: Floats, scale: float | None = None) -> Floats:
        """The values that ``sums`` stand for: sums of what `to_sum` made, of one worker or of all. Linear in them."""
        return sums

    def remark(self, d: int) -> str | None:
        """A warning for whoever trains with it on vectors of ``d`` elements; None: there is none."""
        return None

    # --- with a memory around it ---

    def contractive(self) -> Compressor:
        """The form of this to be used with error feedback, if it has several."""
        return self

    # --- state ---

    def new_state(self, d: int, dtype: npt.DTypeLike) -> State:
        """The first memory of a tensor of ``d`` elements of ``dtype``: nothing, for most."""
        return {}

    def enter(self, x: Floats, state: State) -> Floats:
        """The vector to compress in the place of ``x``, given what is remembered."""
        return x

    def leave(self, entered: Floats, own: Floats, total: Floats, state: State) -> Floats:
        """Remember what happened: this worker has contributed ``own`` for ``entered``, and all together ``total``.

        Returns the sum that the optimizer is to see. Must not change ``state`` if ``total`` is not finite: then the
        step is one to be skipped.
        """
        return total


def scatter(values: Floats, indices: Indices, d: int) -> Floats:
    """``values`` at ``indices`` of a vector of ``d`` zeros."""
    out: Floats = np.zeros(d, values.dtype)
    out[indices] = values
    return out


def check(x: Floats) -> Floats:
    """``x``, if it is a vector. Raises ValueError for anything else."""
    if x.ndim != 1 or x.dtype not in (np.float32, np.float64):
        raise ValueError(f"{x.dtype} of shape {x.shape}: give a 1-D array of float32 or float64")
    return x


def is_whole(value: object) -> bool:
    """Whether it is an integer, NumPy's among them; true and false are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is an integer or a float, NumPy's among them, and no text; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_flag(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is true or false: a misspelt "flase" would else be true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}: give true or false")


def expect(data: bytes, size: int) -> None:
    """Raise ValueError unless ``data`` has ``size`` bytes."""
    if len(data) != size:
        raise ValueError(
            f"{len(data)} bytes where {size} are needed: other settings, or another length, than the sender's"
        )


def told(compressor: Compressor) -> str:
    """The compressor in words that are the same on all ranks of a job: its kind, and the numbers, words and compressors
    that it was made of. Matrices may be of each rank's own."""
    made: Any = compressor
    names = [field.name for field in fields(made)] if is_dataclass(made) else list(getattr(made, "__dict__", ()))
    settings = {name: getattr(made, name) for name in names}
    words = (
        f"{name}={told(value) if isinstance(value, Compressor) else value}"
        for name, value in settings.items()
        if isinstance(value, bool | int | float | str | Compressor)
    )
    return f"{type(made).__name__}({', '.join(words)})"
