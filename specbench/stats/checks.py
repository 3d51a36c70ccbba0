"""What every function here asks of its input. A figure that cannot be computed is None; input that cannot be
used raises.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from specbench.errors import InputError

FloatArray = npt.NDArray[np.float64]


def finite_vector(values: npt.ArrayLike, name: str) -> FloatArray:
    """``values`` as a float64 array [n], n >= 1.

    :raises InputError: not one-dimensional, empty, not numbers, NaN or infinite.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers", where=name) from error
    if array.ndim != 1 or array.size == 0:
        raise InputError(f"{name} must be a non-empty list of numbers, not an array of shape {array.shape}", where=name)
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise InputError(
            f"{name}[{bad[0]}] is {array[bad[0]]}; {bad.size} of {array.size} values are not finite",
            where=name,
            hint="leave out the units that were not measured",
        )
    return array


def positive_vector(values: npt.ArrayLike, name: str) -> FloatArray:
    """As :func:`finite_vector`, and every value above 0.

    :raises InputError: as there, or a value is 0 or below.
    """
    array = finite_vector(values, name)
    bad = np.flatnonzero(array <= 0)
    if bad.size:
        raise InputError(f"{name}[{bad[0]}] is {array[bad[0]]}; a logarithm needs values above 0", where=name)
    return array


def probability(value: float, name: str) -> float:
    """``value``, when it lies strictly between 0 and 1.

    :raises InputError: it does not.
    """
    if not 0.0 < value < 1.0:
        raise InputError(f"{name} must lie between 0 and 1, both excluded, not {value}", where=name)
    return float(value)


def positive(value: float, name: str) -> float:
    """``value``, when it is finite and above 0.

    :raises InputError: it is not.
    """
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be above 0, not {value}", where=name)
    return float(value)


def is_constant(values: FloatArray) -> bool:
    """True when the values differ by rounding only, so that their spread says nothing about noise.

    A log ratio near 0 carries an absolute rounding error of about one machine epsilon, whatever its own size.
    """
    span = float(values.max() - values.min())
    return span <= 4 * float(np.finfo(np.float64).eps) * max(1.0, float(np.abs(values).max()))
