"""Numbers with a wide exponent, for products of many ratios that may overflow a float."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOWEST = -(2**40)  # the exponent of 0, below that of any number


class Wide:
    """mantissa * 2^exponent, elementwise: float64 precision, with exponents up to 2^40.

    Products and sums are exact to rounding where float64 would overflow or underflow. So 0 times a huge number is 0, and the
    sum of two huge numbers has the sign of the larger one.

    Args:
        mantissa: any shape, float64. NaN and infinities are kept.
        exponent: same shape, int64; None for 0.

    Example:
        >>> huge = Wide.exp(torch.tensor([1e4], dtype=torch.float64))
        >>> (huge * Wide.exp(torch.tensor([-1e4], dtype=torch.float64))).float64().round().item(), huge.float64().item()
        (1.0, inf)
    """

    def __init__(self, mantissa: Tensor, exponent: Tensor | None = None) -> None:
        fraction, shift = torch.frexp(mantissa)
        shift = shift.to(torch.int64) if exponent is None else shift + exponent
        # frexp does not define the exponents of NaN and infinities
        self._exponent = torch.where(mantissa.isfinite(), shift, 0).masked_fill(mantissa == 0, _LOWEST)
        self._mantissa = torch.where(mantissa.isfinite(), fraction, mantissa)

    @classmethod
    def exp(cls, x: Tensor) -> Wide:
        """e^x; x is float64."""
        power = torch.where(x.isfinite(), (x / math.log(2)).floor(), 0.0).clamp(-(2.0**32), 2.0**32)
        return cls((x - power * math.log(2)).exp(), power.to(torch.int64))

    def __mul__(self, other: Wide) -> Wide:
        return Wide(self._mantissa * other._mantissa, self._exponent + other._exponent)

    def __add__(self, other: Wide) -> Wide:
        top = torch.maximum(self._exponent, other._exponent)
        return Wide(_shifted(self._mantissa, self._exponent - top) + _shifted(other._mantissa, other._exponent - top), top)

    def __getitem__(self, row: int) -> Wide:
        return Wide(self._mantissa[row], self._exponent[row])

    def masked_fill(self, mask: Tensor, value: float) -> Wide:
        """A copy with this number at positions where the mask is True."""
        return Wide(self._mantissa.masked_fill(mask, value), self._exponent.masked_fill(mask, 0))

    def where(self, mask: Tensor, other: Wide) -> Wide:
        """Elements of this number where the mask is True, else of the other."""
        mantissa = torch.where(mask, self._mantissa, other._mantissa)
        return Wide(mantissa, torch.where(mask, self._exponent, other._exponent))

    def float64(self) -> Tensor:
        """The number as float64, infinite on overflow."""
        half = self._exponent // 2
        return _shifted(_shifted(self._mantissa, half), self._exponent - half)


def _shifted(mantissa: Tensor, exponent: Tensor) -> Tensor:
    """mantissa * 2^exponent; NaN, infinities and 0 are kept."""
    shifted = mantissa * torch.exp2(exponent.clamp(-4000, 4000).to(torch.float64))
    return torch.where(mantissa.isfinite() & (mantissa != 0), shifted, mantissa)
