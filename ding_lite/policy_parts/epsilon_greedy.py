"""Epsilon-greedy acting: the action with the highest value, or a random action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ding_lite.data.trees import first_leaf
from ding_lite.envs import SpaceError
from ding_lite.envs.action_masks import choose_allowed
from ding_lite.envs.arrays import to_arrays
from ding_lite.functional.log_probs import as_index
from ding_lite.nn import get_action_mask, masked
from ding_lite.policy_check import require_output
from ding_lite.policy_state import StateDictError, require_range

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object

_AHEAD = 16  # steps drawn at once, because the overhead of a numpy call is larger than the cost of the numbers
_NOT_YET = -1.0  # eps in a state before the first draw
_MASKED = -1.0  # eps as set by eps_greedy_masker, as in DI-engine: no random actions


class EpsilonGreedy:
    """Replaces actions, with probability eps, by one of n actions, or of those that a mask allows, with equal probability.

    Args:
        num_actions: n.
        rng: random generator.
    """

    def __init__(self, num_actions: int, rng: np.random.Generator) -> None:
        self.num_actions, self.rng = num_actions, rng
        self._eps, self._drawn = _NOT_YET, np.empty((0, 0))
        self._rows: list[tuple[Any, Any]] = []

    def mix(self, action: Any, eps: float, mask: Any = None) -> Any:
        """Replace each of the actions [B] int64, counted from 0, by a random action with probability `eps`.

        Args:
            action: [B] int64.
            eps: in (0, 1].
            mask: [B, n], 0 for actions that are not allowed; None if all are.

        Raises:
            ValueError: eps is not in (0, 1].
        """
        if not self._rows or eps != self._eps or len(action) != self._drawn.shape[1]:
            if not 0 < eps <= 1:
                raise ValueError(_no_probability(eps))
            self._eps = float(eps)
            self._prepare(self.rng.random((_AHEAD, len(action))))
        is_random, any_action = self._rows.pop()
        if mask is not None:
            drawn = self._drawn[len(self._drawn) - len(self._rows) - 1]
            any_action = choose_allowed(mask, np.where(is_random, drawn / eps, 0))
        return np.where(is_random, any_action, action)

    def _prepare(self, drawn: np.ndarray[Any, Any]) -> None:
        # One random number decides both whether to replace and by which action: those below eps are uniform in [0, eps).
        self._drawn = drawn
        is_random = drawn < self._eps
        any_action = (np.where(is_random, drawn / self._eps, 0) * self.num_actions).astype(np.int64)
        self._rows = list(zip(is_random, np.minimum(any_action, self.num_actions - 1)))[::-1]

    def state_dict(self) -> dict[str, Any]:
        """The random numbers that are drawn and not used yet."""
        return {"eps": self._eps, "drawn": self._drawn[len(self._drawn) - len(self._rows) :].tolist()}

    @staticmethod
    def require_state(where: str, state: Any) -> None:
        """Check that a saved state is a possible result of `state_dict`.

        Args:
            where: key of the state, for messages.
            state: the saved state.

        Raises:
            StateDictError: an entry does not fit; the message names it.
        """
        if not isinstance(state, Mapping) or {"eps", "drawn"} - set(state):
            raise StateDictError(f"{where} is {state!r:.80}, expected a dict with ['eps', 'drawn'].")
        eps, drawn = state["eps"], state["drawn"]
        try:
            numbers = np.array(drawn, np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = np.empty(0)
        is_empty = isinstance(drawn, (list, tuple)) and not drawn
        if not is_empty and not (numbers.ndim == 2 and numbers.size and ((numbers >= 0) & (numbers < 1)).all()):
            raise StateDictError(f"{where}['drawn'] is {drawn!r:.80}, expected a list of rows of numbers in [0, 1).")
        if not (is_empty and eps == _NOT_YET and not isinstance(eps, bool)):
            require_range(f"{where}['eps']", eps, (0.0, 1.0))
        if not is_empty and eps == 0:
            raise StateDictError(f"{where}['eps'] is 0 although random numbers were drawn, expected a number above 0.")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state."""
        self._eps = float(state["eps"])
        drawn = state["drawn"]
        self._prepare(np.array(drawn, np.float64) if len(drawn) else np.empty((0, 0)))


def _number(eps: Any) -> float:
    """A probability that may be a scalar of numpy or torch, as a float.

    Raises:
        TypeError: it is not a single number.
    """
    try:
        if np.ndim(eps) == 0 and not isinstance(eps, (str, bytes)):
            return float(eps)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(_no_probability(eps))


def _no_probability(eps: Any) -> str:
    return f"eps is {eps!r:.80}, expected a probability, a number in [0, 1], or -1 for no exploration."


OFFLINE_POLICIES_FOR_BOX_ACTIONS = (
    "BCPolicy or DecisionTransformerPolicy, which support all spaces, or, for Box actions, IQLPolicy, AWACPolicy, CQLPolicy or "
    "TD3BCPolicy"
)
"""What `EpsilonGreedyMixin.for_other_actions` of a policy that learns from datasets advises."""

FOR_RECORDED_BOX_ACTIONS = OFFLINE_POLICIES_FOR_BOX_ACTIONS  # its name in earlier versions


class EpsilonGreedyMixin(Base):
    """A mixin for epsilon-greedy acting with Discrete actions.

    A policy that explores in another way sets `acting_settings = ()`.
    """

    acting_settings: ClassVar[tuple[str, ...]] = ("eps",)
    bootstraps_from_actions: ClassVar[bool] = True
    for_other_actions: ClassVar[str] = "PPOPolicy, or discretise the actions in a wrapper"
    """The policies that learn in the same way and have other action spaces, for messages."""
    action_space: spaces.Discrete

    def check_spaces(self) -> None:
        """Raise SpaceError if the action space is not Discrete."""
        super().check_spaces()
        if not isinstance(self.action_space, spaces.Discrete):
            raise SpaceError(
                f"{type(self).__name__} wants Discrete actions, got {self.action_space}: use {self.for_other_actions}."
            )
        self.num_actions, self.first_action = int(self.action_space.n), int(self.action_space.start)

    def check_model(self, obs: Any) -> None:
        """Check the shape of the Q-values."""
        shape = (len(first_leaf(obs)), self.num_actions)
        require_output(self, "forward(obs)", self.model(obs), shape, "Q-values [B, A], one for each action")

    def q_values(self, obs: Any) -> Tensor:
        """The value of each action, [B, A]. By default, the output of the model."""
        return self.model(obs)  # type: ignore[no-any-return]

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, eps: float = 0.0, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute the actions with the highest values; if it explores, random ones with probability `eps`."""
        return self.choose(self.q_values(obs), eps if explore else 0.0, obs), state, {}

    def choose(self, q_value: Tensor, eps: float, obs: Any = None) -> Any:
        """Epsilon-greedy actions [B] int64 for values [B, A], among those that the `action_mask` of `obs` allows, if any."""
        if torch.compiler.is_compiling():  # an export, which cannot follow numpy
            return masked(q_value, obs).argmax(-1) + self.first_action
        # numpy's argmax takes half of the time of torch's for a few rows
        action = to_arrays(masked(q_value, obs)).argmax(-1)
        if type(eps) is not float:
            eps = _number(eps)
        if eps not in (0, _MASKED):
            mask = get_action_mask(obs)
            action = self.exploration.mix(action, eps, None if mask is None else to_arrays(mask))
        return action + self.first_action if self.first_action else action

    def action_index(self, action: Tensor) -> Tensor:
        """The columns of `q_values` that belong to actions of any dtype of integers: action - start of the space. [B] int64."""
        return as_index(action) - self.first_action if self.first_action else as_index(action)

    def make_generators(self, role: str, index: int = 0) -> None:
        """Create the random generators, and the epsilon-greedy exploration that uses them."""
        super().make_generators(role, index)
        self.exploration = EpsilonGreedy(self.num_actions, self.rng)

    def generator_state(self) -> dict[str, Any]:
        """The states of the random generators, including numbers drawn in advance."""
        return {**super().generator_state(), "exploration": self.exploration.state_dict()}

    def require_generator_state(self, where: str, state: Any) -> None:
        """Check that `load_generator_state` can load this state."""
        super().require_generator_state(where, state)
        self.exploration.require_state(f"{where}['exploration']", state["exploration"])

    def load_generator_state(self, state: Mapping[str, Any]) -> None:
        """Load the states of the random generators."""
        super().load_generator_state(state)
        self.exploration.load_state_dict(state["exploration"])


GreedyActing = EpsilonGreedyMixin  # its name in earlier versions
EpsilonGreedyActing = EpsilonGreedyMixin  # its name in earlier versions
