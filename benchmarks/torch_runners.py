"""The PyTorch programs as runners of a contest, on the device that PyTorch finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

from . import torch_loop, torch_vmap
from .cases import Case
from .contest import Runner

torch.set_float32_matmul_precision("highest")


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def runners(case: Case, parallel: bool, length: int) -> dict[str, Runner]:
    data = Data(case, parallel)
    made = {"torch loop": loop(case, data, parallel, length), "torch vmap": vmapped(case, data, parallel, length)}
    try:
        made["torch vmap compiled"] = vmapped(case, data, parallel, length, torch.compile)
    except Exception as failure:  # the compiler raises whatever its tools raise
        print(f"torch.compile failed on {case.name} and is left out: {str(failure)[:1000]}")
    return made


class Data:
    """A case's arrays as tensors."""

    def __init__(self, case: Case, parallel: bool) -> None:
        self.upper, self.lower = (tuple(map(_tensor, part)) for part in (case.upper_data, case.lower_data))
        self.x0, self.y0 = _tensor(case.x0), tuple(map(_tensor, jax.tree.leaves(case.y0)))
        self.nodes, self.batch = case.nodes, case.batch
        self._levels = (self.upper, *(self.lower,) * (1 if parallel else 3))
        self.each = torch.arange(case.nodes, device=device())[:, None]

    def draw(self) -> tuple[torch.Tensor, ...]:
        """(nodes, batch) samples of the upper level and, once or three times, of the lower."""
        shape = self.nodes, self.batch
        return tuple(torch.randint(part[0].shape[1], shape, device=device()) for part in self._levels)

    def rows(self, part: tuple[torch.Tensor, ...], which: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(leaf[self.each, which] for leaf in part)


def loop(case: Case, data: Data, parallel: bool, length: int) -> Runner:
    program = torch_loop.Loop(case.kind, case.rates, parallel)

    def step(nodes: Any, above: torch.Tensor, *below: torch.Tensor) -> Any:
        pick = lambda part, which: [tuple(leaf[i][w] for leaf in part) for i, w in enumerate(which)]  # noqa: E731
        program.step(nodes, pick(data.upper, above), *(pick(data.lower, which) for which in below))
        return nodes

    def levels(nodes: Any) -> list[np.ndarray]:
        parts = [zip(*(getattr(node, level) for node in nodes), strict=True) for level in "xyz"]
        return [torch.stack(leaf).cpu().numpy() for level in parts for leaf in level]

    start = lambda: [torch_loop.Node(data.x0, data.y0) for _ in range(case.nodes)]  # noqa: E731
    return _runner(step, start, levels, data, length)


def vmapped(case: Case, data: Data, parallel: bool, length: int, compile: Callable = lambda step: step) -> Runner:
    bare = torch_vmap.step_of(case.kind, case.rates, parallel)

    def whole(state: torch_vmap.State, above: torch.Tensor, *below: torch.Tensor) -> torch_vmap.State:
        return bare(state, data.rows(data.upper, above), *(data.rows(data.lower, which) for which in below))

    step = compile(whole)

    def levels(state: torch_vmap.State) -> list[np.ndarray]:
        x, _, y, _, z, *_ = state
        return [t.cpu().numpy() for t in (x, *y, *z)]

    return _runner(step, lambda: torch_vmap.start(data.x0, data.y0, case.nodes), levels, data, length)


def _runner(step: Callable, start: Callable, levels: Callable, data: Data, length: int) -> Runner:
    threads = torch.get_num_threads()

    def run(state: Any) -> Any:
        torch.set_num_threads(threads)
        for _ in range(length):
            state = step(state, *data.draw())
        if device() == "cuda":
            torch.cuda.synchronize()
        return state

    def follow(samples: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
        """The levels after steps on given samples."""
        state = start()
        for drawn in samples:
            state = step(state, *map(_tensor, drawn))
        return levels(state)

    def seconds(count: int) -> float:
        nonlocal threads
        threads = count
        state = run(start())
        begun = time.perf_counter()
        run(state)
        return time.perf_counter() - begun

    follow([tuple(one.cpu().numpy() for one in data.draw())])  # whatever must be compiled
    if device() == "cpu":  # small operations are often faster on one core, and PyTorch does not see it
        threads = min((1, torch.get_num_threads()), key=seconds)
    return Runner(start, run, length, follow)


def _tensor(array: Any) -> torch.Tensor:
    whole = np.array(array)  # a copy: JAX's own memory must not be written to
    tensor = torch.from_numpy(whole)
    return tensor.to(device(), torch.int64 if whole.dtype.kind == "i" else tensor.dtype)
