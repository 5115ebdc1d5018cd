# SPDX-License-Identifier: Apache-2.0
"""The same call on keyfold and on what else is importable, compared, then timed side by side::

    python -m keyfold.peers                                     # what this machine can run
    python -m keyfold.peers --op decode --shape 1,32,8,1,8192,128 --json decode.json --plot decode
    python -m keyfold.peers --op rmsnorm,swiglu --peers eager,compile --do-bench

How it measures. All implementations of a case run in one process, on one stream, on the same random values, in turn: a
round times each of them once, beginning with another one each round. A ratio is of two times of the same round; a row
gives the lower quartile of the rounds' ratios, so that "1.10" means: in three rounds of four the peer took at least
1.10 times as long as keyfold. Inputs and outputs, a peer's too, rotate through enough sets to exceed the last-level
cache several times, so a call finds it cold and nothing has to be flushed inside a timing (at most 256 sets: where those
are less than the cache, as with one row, every implementation finds its own there). On CUDA, where a call of any
implementation takes the device less than a millisecond, all of them are captured into CUDA graphs and the graphs are timed: at
that length the launches from Python would be measured, not the kernels. Before anything is timed every result is held against float64.

`formulas` has the textbook's mathematics, `place` the devices and frameworks, `attention` and `rows` the operations and
how each peer is called, `timing` the rounds, `report` the table, the JSON and the plot.
"""

from .cases import CASES, Case
from .measure import measure
from .place import Place

__all__ = ["CASES", "Case", "Place", "measure"]
