"""SGD with memory (Mem-SGD, Stich et al. 2018, algorithm 1) as a PyTorch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

from ..base import Compressor
from ..key import Key
from ..registry import parse
from .rates import Rate

Vector = npt.NDArray[Any]
Exchange = Callable[[int, Vector], tuple[Vector, Vector]]
"""Takes a parameter's number and what enters its memory, as a vector; compresses it and sums it over all workers.
Returns what this worker has contributed, rounding included, and the mean of all. See `network.SwitchMean`."""


class MemSGD(torch.optim.Optimizer):
    """x <- x - g with g = C(m + eta_t grad), and m <- m + eta_t grad - g: what is not sent now is kept in the memory m.

    The step size enters the memory with the gradient. So with x~ = x_0 - sum of eta_t grad, what plain SGD would have
    done with the same gradients, x~ = x - m at all times.

        optimizer = MemSGD(model.parameters(), lr=InverseTime(2, l2, d), compressor=TopK(1), seed=7)

    ``lr``: a number or a function of the step. ``compressor``: or its name and options, as "topk:k=1"; best a
    contraction: of what has such a form that is taken, so rand-k does not scale. Each parameter is compressed as one
    vector. ``weight``: if given, `average` holds the mean of the iterates x_0, x_1, ... with the weights ``weight(t)``;
    theorem 2.4 asks for `rates.SquaredTime`. ``exchange``: with several workers, in the place of the compressor; the
    memory then keeps what this worker has not contributed. Parameters are of float32 or float64: in fewer bits the
    memory would round away what it is for.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float | Rate,
        compressor: Compressor | str | None = None,
        *,
        seed: int = 0,
        weight: Rate | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        if not callable(lr) and not lr > 0:
            raise ValueError(f"lr = {lr}: give a number above 0, or a function of the step")
        if (compressor is None) == (exchange is None):
            raise ValueError("give a compressor, or an exchange that has one")
        if isinstance(compressor, str):
            compressor = parse(compressor)
        self.compressor, self.seed = compressor.contractive() if compressor is not None else None, seed
        self._weight, self._exchange = weight, exchange
        super().__init__(params, {"lr": lr})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer`, which also calls it when it is made. ValueError: parameters of other types."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.dtype not in (torch.float32, torch.float64):
                self.param_groups.pop()
                raise ValueError(f"a parameter of {parameter.dtype}: give float32 or float64 (torch.autocast computes "
                                 "in fewer bits, and leaves parameters as they are)")  # fmt: skip

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"], number)
                number += 1
        return loss

    def _update(self, parameter: torch.Tensor, lr: float | Rate, number: int) -> None:
        state = self.state[parameter]
        if not state:
            state["step"], state["memory"] = 0, torch.zeros_like(parameter)
            if self._weight is not None:
                state["average"], state["weights"] = torch.zeros_like(parameter), 0.0
        t, memory = state["step"], state["memory"]
        if self._weight is not None:
            weight = self._weight(t)
            state["weights"] += weight
            state["average"] += (parameter - state["average"]) * (weight / state["weights"])
        assert parameter.grad is not None
        entering = memory.add(parameter.grad, alpha=lr(t) if callable(lr) else lr)
        vector = entering.cpu().reshape(-1).numpy()
        if self._exchange is not None:
            contributed, mean = self._exchange(number, vector)
        else:
            assert self.compressor is not None
            contributed = mean = self.compressor(vector, Key(self.seed, 0, t, number))
        parameter.sub_(_like(parameter, mean))
        torch.sub(entering, _like(parameter, contributed), out=memory)
        state["step"] = t + 1

    def memory(self, parameter: torch.Tensor) -> torch.Tensor:
        """The part of ``parameter``'s steps that has not been sent; zeros before its first step."""
        memory: torch.Tensor = self.state[parameter].get("memory", torch.zeros_like(parameter))
        return memory

    def average(self, parameter: torch.Tensor) -> torch.Tensor:
        """The weighted mean of the iterates of ``parameter`` so far. Raises ValueError if there is no ``weight``."""
        if self._weight is None:
            raise ValueError("no average is kept: give MemSGD a weight, for example SquaredTime(a)")
        state = self.state[parameter]
        return state["average"].clone() if state else parameter.detach().clone()


def _like(parameter: torch.Tensor, vector: Vector) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(vector)).view_as(parameter).to(parameter.device)
