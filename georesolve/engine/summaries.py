"""Sum, mean, minimum and maximum of the references of pairs, for each observation.

Sums are exact and rounded at most once, so the order of the pairs has no effect. Nulls and NaN are
left out.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from georesolve.io.numbers import Values
from georesolve.kernels import Pairs

_WORD = 2**32 - 1


def summarize(
    values: Values, kinds: Iterable[str], pairs: Pairs, valid: np.ndarray
) -> dict[str, pa.Array]:
    """Return the columns of a summary; `valid` marks observations with a valid coordinate.

    The sum of no values is 0, their mean, minimum and maximum are null. Raises OverflowError with
    the limit where a sum does not fit its type.
    """
    has_value = values.addends.is_valid().to_numpy(zero_copy_only=False)[pairs.reference]
    rows = pa.array(pairs.reference[has_value])
    bounds = np.append(0, np.cumsum(has_value))[pairs.starts]
    counts = np.diff(bounds)
    # `reduceat` takes no empty ranges.
    is_filled = counts > 0
    starts = bounds[:-1][is_filled]
    places = pa.array(np.cumsum(is_filled) - 1, mask=~is_filled)
    sums: _Sums | None = None
    columns: dict[str, pa.Array] = {}
    for kind in kinds:
        if kind in ("min", "max"):
            columns[kind] = _extremes(values.values.take(rows), starts, kind).take(places)
            continue
        sums = sums or _Sums.of(values.addends.take(rows), starts)
        if kind == "mean":
            means = sums.means(values.sum_type, counts[is_filled])
            columns[kind] = pa.array(means, pa.float64()).take(places)
        else:
            columns[kind] = sums.column(values.sum_type, is_filled, valid)
    return columns


def _extremes(values: pa.Array, starts: np.ndarray, kind: str) -> pa.Array:
    """Return the minimum or maximum of each range of values."""
    if not starts.size:
        return values
    reduce = np.minimum.reduceat if kind == "min" else np.maximum.reduceat
    if not pa.types.is_decimal(values.type):
        return pa.array(reduce(values.to_numpy(), starts), values.type)
    # Arrow sorts no decimals of 32 or 64 bits.
    wide = pa.decimal256(76, values.type.scale)
    order = pc.sort_indices(values.cast(wide)).to_numpy()
    ranks = np.empty(order.size, np.int64)
    ranks[order] = np.arange(order.size)
    return values.take(pa.array(order[reduce(ranks, starts)]))


class _Sums(NamedTuple):
    """Exact sums: multiples of a unit in words of 32 bits, lowest first; the last has the sign."""

    words: np.ndarray
    unit: Fraction

    @classmethod
    def of(cls, addends: pa.Array, starts: np.ndarray) -> "_Sums":
        """Sum each range of numbers."""
        words, unit = _words(addends)
        if not starts.size:
            return cls(np.empty((0, 1), np.int64), unit)
        sums = [np.add.reduceat(word, starts, dtype=np.int64) for word in words]
        sums.append(np.zeros(starts.size, np.int64))
        for word, following in pairwise(sums):
            following += word >> 32
            word &= _WORD
        return cls(np.stack(sums, axis=1), unit)

    def column(self, kind: pa.DataType, is_filled: np.ndarray, valid: np.ndarray) -> pa.Array:
        """Return sums for all observations as a column, 0 where there is no value."""
        if pa.types.is_floating(kind):
            over, under = self.unit.as_integer_ratio()
            floats = np.zeros(valid.size)
            try:
                floats[is_filled] = [total * over / under for total in self.totals()]
            except OverflowError:
                raise OverflowError("64 bits") from None
            return pa.array(floats, mask=~valid)
        n_words = kind.bit_width // 32
        words = np.zeros((valid.size, n_words), np.uint32)
        words[is_filled] = self.words[:, :n_words]
        has_sign = not pa.types.is_unsigned_integer(kind)
        sign = -(words[is_filled, -1] >> 31).astype(np.int64) if has_sign else 0
        is_decimal = pa.types.is_decimal(kind)
        limit = f"{kind.precision} digits" if is_decimal else "64 bits"
        if (self.words[:, n_words:] != np.atleast_1d(sign)[:, None]).any():
            raise OverflowError(limit)
        buffers = [pa.array(valid).buffers()[1], pa.py_buffer(words)]
        column = pa.Array.from_buffers(kind, valid.size, buffers)
        if is_decimal:
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                raise OverflowError(limit) from None
        return column

    def means(self, kind: pa.DataType, sizes: np.ndarray) -> list[float]:
        """Return the mean of each range: the sum in its type by the size, or the exact quotient."""
        over, under = self.unit.as_integer_ratio()
        means, is_float = [], pa.types.is_floating(kind)
        for total, size in zip(self.totals(), sizes.tolist(), strict=True):
            # Python rounds the quotient of two integers once.
            exact = total * over / (under * size)
            try:
                means.append(total * over / under / size if is_float else exact)
            except OverflowError:
                means.append(exact)
        return means

    def totals(self) -> list[int]:
        """Return the sums in units."""
        width = 4 * self.words.shape[1]
        content = self.words.astype(np.uint32).tobytes()
        starts = range(0, len(content), width)
        return [int.from_bytes(content[at : at + width], "little", signed=True) for at in starts]


def _words(addends: pa.Array) -> tuple[Iterable[np.ndarray], Fraction]:
    """Return words of numbers, lowest first, and the unit; all but the last word are unsigned."""
    kind = addends.type
    if pa.types.is_floating(kind):
        return _float_words(addends.to_numpy())
    words = np.frombuffer(addends.buffers()[1] or b"", np.uint32)
    words = words.reshape(-1, kind.bit_width // 32)
    words = words[addends.offset : addends.offset + len(addends)]
    last = words[:, -1]
    top = last if pa.types.is_unsigned_integer(kind) else last.view(np.int32)
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    return [*words.T[:-1], top], Fraction(10) ** -scale


def _float_words(numbers: np.ndarray) -> tuple[Iterator[np.ndarray], Fraction]:
    """Return float64 as whole multiples of the last bit of the smallest number."""
    fractions, exponents = np.frexp(numbers)
    mantissas = np.ldexp(fractions, 53).astype(np.int64)
    lowest = int(exponents[mantissas != 0].min(initial=1100))
    places, shifts = np.divmod(np.maximum(exponents.astype(np.int64) - lowest, 0), 32)
    low, high = (mantissas & _WORD) << shifts, (mantissas >> 32) << shifts
    parts = low & _WORD, (low >> 32) + (high & _WORD), high >> 32

    def words() -> Iterator[np.ndarray]:
        for i in range(int(places.max(initial=0)) + len(parts)):
            shifted = [np.where(places == i - j, part, 0) for j, part in enumerate(parts)]
            yield np.sum(shifted, axis=0)

    return words(), Fraction(2) ** (lowest - 53)
