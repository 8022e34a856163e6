"""Exploring: new values of settings, near those of a good member or drawn anew."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ding_lite.basics import add_note
from ding_lite.basics.signatures import signature_of


@dataclasses.dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`; whole ones only, if both are whole numbers. Perturbed values are clipped to it; whole
    numbers stay whole, if it holds any.

    Args:
        low, high: limits.
        log: whether to draw the logarithm uniformly, for settings such as a learning rate.

    Raises:
        ValueError: the limits are in the wrong order; or, with `log`, not above 0.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"Range({self.low}, {self.high}) wants two numbers, the smaller one first.")
        if self.log and self.low <= 0:
            raise ValueError(f"Range({self.low}, {self.high}, log=True) wants limits above 0.")

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, rng: np.random.Generator) -> Any:
        """A random value."""
        if self.log:
            end = self.high + 1 if self._is_whole else self.high  # cut to a whole number, each gets its share
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(end)))
            clipped = min(max(drawn, self.low), self.high)
            return int(clipped) if self._is_whole else float(clipped)
        if self._is_whole:
            return int(rng.integers(int(self.low), int(self.high) + 1))
        return float(rng.uniform(self.low, self.high))

    def perturb(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Any:
        """The value times one of the factors, drawn at random, within the limits. Whole numbers move by at least 1; see
        `_whole`."""
        product = value * float(factors[int(rng.integers(len(factors)))])
        clipped = min(max(product, self.low), self.high)
        first, last = math.ceil(self.low), math.floor(self.high)  # of the whole numbers inside
        if isinstance(value, int) and not isinstance(value, bool) and first <= last:
            return min(max(_whole(value, clipped), first), last)
        return float(clipped)


@dataclasses.dataclass(frozen=True)
class Choices:
    """Some values. A perturbed value is a neighbour in this order; the first and the last value stay half of the time.

    Args:
        values: the values.

    Raises:
        ValueError: there are none.
    """

    values: Sequence[Any]

    def __post_init__(self) -> None:
        if not len(self.values):
            raise ValueError("Choices([]) wants one value or more.")

    def draw(self, rng: np.random.Generator) -> Any:
        """A random value."""
        return self.values[int(rng.integers(len(self.values)))]

    def perturb(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Any:
        """The value before or after this one, or this one where there is none; a random value, if it is not among them."""
        if value not in self.values:
            return self.draw(rng)
        place = list(self.values).index(value) + (1 if rng.random() < 0.5 else -1)
        return self.values[min(max(place, 0), len(self.values) - 1)]


Mutation = Range | Choices | Sequence[Any] | Callable[[np.random.Generator], Any]
"""How a setting is explored: a Range, Choices or a list of values; or a function of a random generator that draws a value.
Numbers from it are perturbed by the factors. Other values, and numbers that would then be out of range, are drawn anew."""


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """A setting that a function draws."""

    name: str
    fn: Callable[[np.random.Generator], Any]

    def draw(self, rng: np.random.Generator) -> Any:
        try:
            return self.fn(rng)
        except Exception as error:
            add_note(error, f"in the function of hyperparam_mutations[{self.name!r}], which gets a random generator of numpy")
            raise

    def perturb(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return self.draw(rng)
        product = value * float(factors[int(rng.integers(len(factors)))])
        return _whole(value, product) if isinstance(value, int) else float(product)


def _whole(value: int, product: float) -> int:
    """The product of a whole number as a whole number: rounded, but at least 1 away from the value if the factor changes it.

    Rounding alone would leave 1 and 2 as they are. It does not move from 1 to 0, which is seldom a possible setting.

    Example:
        >>> [_whole(value, value * factor) for value in (1, 2, 10) for factor in (1.2, 0.8)]
        [2, 1, 3, 1, 12, 8]
    """
    rounded = round(product)
    if rounded != value or product == value:
        return rounded
    return value + (1 if product > value else -1) or value


def as_mutation(name: str, given: Any) -> Range | Choices | _Drawn:
    """A mutation in one of the forms of `Mutation`.

    Raises:
        TypeError: it has another type, or is a function that does not take one random generator.
    """
    if isinstance(given, (Range, Choices, _Drawn)):
        return given
    if isinstance(given, (list, tuple)):
        return Choices(given)
    if callable(given):
        _require_one_argument(name, given)
        return _Drawn(name, given)
    raise TypeError(
        f"hyperparam_mutations[{name!r}] is {given!r:.60}: use Range(low, high), a list of values, or a function of a random "
        "generator."
    )


def _require_one_argument(name: str, fn: Callable[..., Any]) -> None:
    try:
        signature_of(fn).bind(None)
    except ValueError:  # a built-in function without a signature
        return
    except TypeError as error:
        raise TypeError(
            f"hyperparam_mutations[{name!r}] is a function that cannot be called with one argument: {error}. It gets a random "
            "generator of numpy, so that the same seed gives the same values: lambda rng: float(rng.uniform(1e-4, 1e-2))."
        ) from None


def explored(
    values: Mapping[str, Any],
    mutations: Mapping[str, Any],
    rng: np.random.Generator,
    resample_probability: float = 0.25,
    perturbation_factors: Sequence[float] = (1.2, 0.8),
    custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    is_allowed: Callable[[str, Any], bool] = lambda name, value: True,
) -> dict[str, Any]:
    """New values of settings: each drawn anew with the probability, otherwise perturbed.

    Args:
        values: current values by dotted name.
        mutations: how to explore each of them; see `Mutation`.
        rng: source of random numbers.
        resample_probability: probability of a new draw.
        perturbation_factors: factors for numbers, of which one is drawn.
        custom_explore_fn: called with the new values, returns those to use.
        is_allowed: whether a setting may have a value.

    Raises:
        TypeError: a value is no plain data, or the function returned no dict.

    Example:
        >>> explored({"lr": 0.1}, {"lr": Range(0.0, 1.0)}, np.random.default_rng(0), resample_probability=0.0)
        {'lr': 0.08000000000000002}
    """
    new = {}
    for name, given in mutations.items():
        mutation = as_mutation(name, given)
        is_resampled = bool(rng.random() < resample_probability)
        value = mutation.draw(rng) if is_resampled else mutation.perturb(values[name], perturbation_factors, rng)
        if isinstance(mutation, _Drawn) and not (is_resampled or is_allowed(name, _plain(name, value))):
            value = mutation.draw(rng)
        new[name] = _plain(name, value)
    if custom_explore_fn is None:
        return new
    found = custom_explore_fn(dict(new))
    if not isinstance(found, Mapping):
        raise TypeError(f"custom_explore_fn returned {found!r:.60}: return a dict of values by name, as it gets one.")
    return {name: _plain(name, value) for name, value in found.items()}


def drawn_values(mutations: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Values of all settings, drawn at random: those of a first member."""
    return {name: _of_python(as_mutation(name, given).draw(rng)) for name, given in mutations.items()}


def _of_python(value: Any) -> Any:
    """Python's number for one of numpy; other values unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _plain(name: str, value: Any) -> Any:
    """The value with Python's number for one of numpy.

    Raises:
        TypeError: it is no plain data, which the log of decisions could not hold.
    """
    value = _of_python(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the new value of {name!r} is {value!r:.60}, of the class {type(value).__name__}: return numbers, strings, None, "
            "or lists and dicts of them, such as float(value)."
        ) from error
    return value
