"""Tensors in pieces: cut by shape alone, read in index order, shared out to threads.

A piece is a block of whole trailing axes, or a part of one, so that any memory layout can be
read without a copy of the tensor and rows along the last axis stay whole where they fit. Since
the shape alone decides, numbers taken from pieces in their order depend neither on the layout
nor on how many threads took them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from xbench import environment

Array = np.ndarray[Any, Any]
T = TypeVar("T")

PARALLEL = 1 << 20
"""Elements from which on threads are worth their start."""
MOST_THREADS = 2
"""They hand the interpreter's lock to and fro: two saved 10 to 30 % of the time, not half."""


class Pieces:
    """How a shape is cut into ``count`` pieces of at most ``most`` elements, in index order.

    ``split``: how many pieces a row along the last axis takes; 1 where pieces hold whole rows.
    """

    def __init__(self, shape: tuple[int, ...], most: int) -> None:
        self.shape = shape or (1,)
        axis, inner = len(self.shape) - 1, 1
        while axis and inner * self.shape[axis] <= most:
            inner *= self.shape[axis]
            axis -= 1
        self.axis = axis
        length = self.shape[axis]
        self.parts = -(-length // max(1, most // inner))
        self.step = -(-length // self.parts)
        self.parts = -(-length // self.step)
        self.count = math.prod(self.shape[:axis]) * self.parts
        self.most = self.step * inner
        self.split = self.parts if axis == len(self.shape) - 1 and axis else 1

    def of(self, array: Array, index: int) -> Array:
        """Piece ``index`` of ``array``, flat and in native byte order; a view where possible."""
        if self.count == 1:
            return _native(array.reshape(-1))
        outer, part = divmod(index, self.parts)
        place: list[int | slice] = [slice(part * self.step, (part + 1) * self.step)]
        for length in self.shape[self.axis - 1 :: -1] if self.axis else ():
            outer, here = divmod(outer, length)
            place.append(here)
        return _native(array.reshape(self.shape)[tuple(place[::-1])].reshape(-1))

    def start(self, index: int) -> int:
        """Where in its row piece ``index`` starts, for rows of several pieces."""
        return (index % self.parts) * self.step


def _native(flat: Array) -> Array:
    return flat if flat.dtype.isnative else flat.astype(flat.dtype.newbyteorder("="))


def threads(elements: int) -> int:
    """How many threads are worth it."""
    return 1 if elements < PARALLEL else min(environment.usable_cpus(), MOST_THREADS)


def each(count: int, workers: int, make: Callable[[], Callable[[int], T]]) -> list[T]:
    """``[work(0), ..., work(count - 1)]``; every thread asks ``make`` for its own ``work``.

    Floating point warnings are off in all of them. An exception ends the reading and is raised.
    """
    if workers == 1 or count == 1:
        with np.errstate(all="ignore"):
            work = make()
            return [work(index) for index in range(count)]
    results: dict[int, T] = {}
    todo, lock = iter(range(count)), threading.Lock()

    def following() -> int | None:
        with lock:
            return next(todo, None)

    def drain() -> None:
        # Each thread has an error state of its own.
        with np.errstate(all="ignore"):
            work = make()
            while (index := following()) is not None:
                results[index] = work(index)

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(drain) for _ in range(min(workers, count))]:
            done.result()
    return [results[index] for index in range(count)]
