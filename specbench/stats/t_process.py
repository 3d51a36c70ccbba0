"""How t statistics of growing data move together when nothing is there to find: exact for normal noise.

Let u = sum(x) / sqrt(sum(x^2)) over the first n units; t is an increasing function of u. For independent
normal units of mean 0, sum(x^2) is complete and sufficient for the variance and u does not depend on it, so
the two are independent (Basu 1955). With m more units, whose own ratio is v, therefore

    u' = u sqrt(B) + v sqrt(1 - B),    B ~ Beta(n / 2, m / 2),

with u, v and B independent: over the looks u is a Markov chain, and probabilities of stopping follow by
recursion, with no normal approximation. That approximation lets 5.7% through for five looks at 5 units, and
5.2% at 20.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from specbench.stats.checks import FloatArray

_NUM_CELLS = 96
_NUM_NODES = 24
_NEGLIGIBLE_TAIL = 1e-10
_TABLE_SIZE = 10_001
_WIDEST_RATIO = 8.5


def ratio_at_tail(tail: float, num_units: int) -> float:
    """The u that is exceeded with probability ``tail`` after ``num_units`` >= 2 units."""
    shape = (num_units - 1) / 2
    return math.sqrt(num_units) * (1 - 2 * float(special.betaincinv(shape, shape, tail)))


@dataclass(frozen=True, eq=False)
class UnstoppedPaths:
    """Paths that no look has stopped yet, as cells of u after ``num_units`` units.

    :param centers: [cells] where in each cell its mass is taken to be; ``masses`` [cells] probabilities,
        which sum to less than 1 once paths have stopped.
    """

    num_units: int
    centers: FloatArray
    masses: FloatArray

    @classmethod
    def first(cls, num_units: int, tail: float, *, two_sided: bool) -> UnstoppedPaths:
        """The paths that a first look at ``num_units`` units lets go on."""
        edges, centers = _cells(num_units, tail, two_sided=two_sided)
        shape = (num_units - 1) / 2
        below = special.betainc(shape, shape, (1 + edges / math.sqrt(num_units)) / 2)
        return cls(num_units, centers, np.diff(below))

    def next(self, num_units: int, tail: float, *, two_sided: bool) -> UnstoppedPaths:
        """The paths that a further look, at ``num_units`` units in all, lets go on."""
        edges, centers = _cells(num_units, tail, two_sided=two_sided)
        return UnstoppedPaths(num_units, centers, np.diff(self._share_below(edges, num_units)))

    def share_above(self, tail: float, num_units: int) -> float:
        """The probability of not having stopped and being above the ``tail`` bound at ``num_units``."""
        bound = np.array([ratio_at_tail(tail, num_units)])
        return float(self.masses.sum() - self._share_below(bound, num_units)[0])

    def _share_below(self, limits: FloatArray, num_units: int) -> FloatArray:
        """[limits] the probability of not having stopped yet and u' being at most each limit."""
        added = num_units - self.num_units
        step = _step_by_one if added == 1 else _step_by_many
        shares: FloatArray = step(limits[:, None], self.centers[None, :], self.num_units, added) @ self.masses
        return shares


def _cells(num_units: int, tail: float, *, two_sided: bool) -> tuple[FloatArray, FloatArray]:
    """Edges and centers of cells over the u that go on, equal in the angle whose sine is u / sqrt(n)."""
    root = math.sqrt(num_units)
    high = ratio_at_tail(max(tail, _NEGLIGIBLE_TAIL), num_units)
    low = -high if two_sided else -ratio_at_tail(_NEGLIGIBLE_TAIL, num_units)
    angles = np.linspace(math.asin(low / root), math.asin(high / root), 2 * _NUM_CELLS + 1)
    points = root * np.sin(angles)
    return points[::2], points[1::2]


def _step_by_one(limits: FloatArray, ratios: FloatArray, num_units: int, _added: int) -> FloatArray:
    """P(u' <= limit | u) for one more unit, whose v is -1 or 1.

    With sqrt(B) the cosine of an angle that has v's sign, u' = sqrt(1 + u^2) sin(angle + atan u).
    """
    turn = np.arctan(ratios)
    reach = np.arcsin(np.clip(limits / np.sqrt(1 + ratios**2), -1, 1))

    def share(angle: FloatArray) -> FloatArray:
        sine = np.sin(np.clip(angle, -np.pi / 2, np.pi / 2))
        part: FloatArray = special.betainc(num_units / 2, num_units / 2, (1 + sine) / 2)
        return part

    beyond = np.where(turn >= 0, 1 - share(np.pi - reach - turn), -share(-np.pi - reach - turn))
    return share(reach - turn) + beyond


def _step_by_many(limits: FloatArray, ratios: FloatArray, num_units: int, added: int) -> FloatArray:
    """P(u' <= limit | u) for two or more new units: the distribution of v, averaged over quantiles of B."""
    kept, weights = _kept_nodes(num_units, added)
    needed = (limits[..., None] - ratios[..., None] * np.sqrt(kept)) / np.sqrt(1 - kept)
    shares: FloatArray = np.interp(needed, *_new_ratio_table(added)) @ weights
    return shares


@lru_cache(maxsize=64)
def _kept_nodes(num_units: int, added: int) -> tuple[FloatArray, FloatArray]:
    """Values of B and their weights: Gauss-Legendre in its probability."""
    nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
    return special.betaincinv(num_units / 2, added / 2, (nodes + 1) / 2), weights / 2


@lru_cache(maxsize=64)
def _new_ratio_table(added: int) -> tuple[FloatArray, FloatArray]:
    """Points of v and the probability below each, close enough for straight lines between them."""
    root, shape = math.sqrt(added), (added - 1) / 2
    widest = math.asin(min(1.0, _WIDEST_RATIO / root))
    sines = np.sin(np.linspace(-widest, widest, _TABLE_SIZE))
    return root * sines, special.betainc(shape, shape, (1 + sines) / 2)
