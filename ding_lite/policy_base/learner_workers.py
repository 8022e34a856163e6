"""What a learner does in its process: it makes the policy, learns from its part of each batch, and returns its state."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ding_lite.basics.blocks import block
from ding_lite.basics.comparisons import same_values
from ding_lite.basics.global_random import global_random_states, set_global_random_states
from ding_lite.basics.torch_modes import TorchModes, torch_modes
from ding_lite.basics.torch_threads import torch_threads, torch_threads_here
from ding_lite.data.column_arrays import tensor_to_array
from ding_lite.data.trees import map_leaves
from ding_lite.policy_base.config_sections import PolicyConfig
from ding_lite.policy_base.constructions import Given
from ding_lite.policy_base.learner_sync_checks import plain_settings, settings_apart
from ding_lite.policy_base.sent_warnings import SentWarning, collecting_warnings
from ding_lite.policy_base.weights import WeightsSnapshot
from ding_lite.processes import Copied
from ding_lite.ranks import RankError, Ranks, leave, meet, offer

_OF_SCRIPT = ("collect", "evaluate", "metrics", "made_with")
"""Entries of a policy's state that a learner does not change."""

_LEARNER = "learner"
"""Name of the learner among the objects of its host."""

_ATTACHED = "attached"
"""Entry of a state with the objects that are attached to the policy."""


class Recipe(NamedTuple):
    """How to make the policy of a learner."""

    kind: type
    cfg: PolicyConfig
    given: Given
    """The arguments of its constructor."""

    threads: int | None
    """Torch threads per operation, because results depend on their number."""

    timeout_s: float

    owner: str | None
    """The owner of the metrics of the hooks."""


class Answer(NamedTuple):
    """What a learner returns for a batch."""

    output: dict[str, Any]
    """A dict to log, with arrays for tensors."""

    tensors: dict[str, torch.dtype]
    """The dtypes of the tensors in it, by name."""

    num_steps: dict[str, int]
    metrics: dict[Any, Any]
    """The metrics of the hooks, reduced."""

    weights: WeightsSnapshot | None
    """The weights as arrays, from the first learner."""

    randoms: dict[str, Any] | None
    """The states of the global random generators, from the first learner."""

    state: dict[str, Any] | None
    """The state after it, if it is asked for: see `Learner.state`."""

    settings: dict[str, Any] | None
    """The configuration, if a hook has changed it."""

    warnings: list[SentWarning]


class Failed(NamedTuple):
    """The answer of a learner that stopped because another one has failed."""

    reason: str


class Learner:
    """A policy that learns, in its process.

    Args:
        recipe: how to make the policy.
        ranks: the learners of the policy, as this one sees them; None for one alone.
    """

    def __init__(self, recipe: Recipe, ranks: Ranks | None) -> None:
        self._ranks, self._threads = ranks, recipe.threads
        self._left: tuple[dict[str, Any], list[SentWarning]] | None = None
        try:
            args, kwargs = recipe.given.arguments()
            with _shown_in_script(), _global_random(recipe.given.randoms):
                self.policy = recipe.kind(*args, **kwargs)
                self.policy.dry_run()
            self._settings = plain_settings(self.policy.cfg)
            if others := settings_apart(plain_settings(recipe.cfg), self._settings):
                raise TypeError(f"its constructor, or the script after it, changes the configuration: {', '.join(others[:5])}")
        except TypeError as error:
            raise TypeError(
                f"a learner could not make a {recipe.kind.__name__} as the script has: {error}. Learn in the process of the "
                "script: policy.learners.num_learners=0."
            ) from error
        if not self._is_first:
            torch.manual_seed(self.policy.rank_seed)
        self.policy.hook_metrics.owner = recipe.owner

    def learn(self, batch: Any, randoms: Mapping[str, Any], modes: TorchModes | None, wants_state: bool) -> Answer | Failed:
        """Learn from a batch of arrays, in these modes of torch; if this is the first learner, with these states of the global
        random generators."""
        policy, shown = self.policy, list[SentWarning]()
        if self._is_first:
            set_global_random_states(randoms)
        try:
            with torch_threads(self._threads), torch_modes(modes), collecting_warnings(shown):
                output = policy.learn_mode.forward(map_leaves(_own, batch))
            answer = self._answer(output, wants_state, shown)
            if self._ranks is not None:
                # Otherwise an error of one learner after its last exchange would wait for the next batch of the others.
                self._ranks.exchange("the end of a batch")
        except RankError as error:
            return Failed(str(error))
        except BaseException as error:
            self._left = global_random_states(), shown
            if self._ranks is not None:
                self._ranks.fail(error)
            raise
        return answer

    def _answer(self, output: Mapping[str, Any], wants_state: bool, shown: list[SentWarning]) -> Answer:
        policy = self.policy
        return Answer(
            {name: array_of(value) for name, value in output.items()},
            {name: value.dtype for name, value in output.items() if isinstance(value, Tensor)},
            dict(policy.num_steps),
            policy.hook_metrics.reduce(),
            policy.snapshot().as_arrays() if self._is_first else None,
            global_random_states() if self._is_first else None,
            self.state() if wants_state else None,
            self._changed_settings(),
            shown,
        )

    def left_by_error(self) -> tuple[dict[str, Any], list[SentWarning]] | None:
        """The states of the global random generators and the warnings after a batch that has ended by an error; None if the
        last one has not, or if they were read before."""
        left, self._left = self._left, None
        return left

    def _changed_settings(self) -> dict[str, Any] | None:
        """The configuration, if it has changed since the last call.

        Raises:
            RuntimeError: a hook has changed it by other means than `reset_config`.
        """
        policy, now = self.policy, plain_settings(self.policy.cfg)
        changed = settings_apart(self._settings, now)
        if own := [name for name in changed if name not in policy.first_settings]:
            raise RuntimeError(
                f"a hook of {type(policy).__name__} has set cfg.{own[0]} in a learner, and the script does not have it: use "
                "self.reset_config(), or an attribute that is part of the state."
            )
        self._settings = now
        return now if changed else None

    def state(self) -> dict[str, Any]:
        """What learning changes in the policy, on the CPU; of a learner that is not the first, its random generators and the
        attached objects."""
        policy = self.policy
        if not self._is_first:
            return _on_cpu({"learn": policy.generator_state(), _ATTACHED: policy.attached_states()})  # type: ignore[no-any-return]
        state = policy.state_dict()
        own = {name: part for name, part in state.items() if name not in _OF_SCRIPT}
        return _on_cpu({**own, _ATTACHED: {name: state[_ATTACHED][name] for name in policy.attachments}})  # type: ignore[no-any-return]

    def load(self, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        """Load the state of the policy of the script.

        Args:
            state: its state.
            own: what this learner has of its own, see `own_state`; None for its current random generators, and the attached
                objects of the first learner. Unused in the first learner.
        """
        if not self._is_first:
            generators = dict(own or self.policy.generator_state())
            attached = generators.pop(_ATTACHED, {})
            state = {**state, "learn": generators, _ATTACHED: {**state[_ATTACHED], **attached}}
        with _shown_in_script():
            self.policy.load_state_dict(state)
        self._settings = plain_settings(self.policy.cfg)

    def attributes_apart(self, values: Mapping[str, Any]) -> list[str]:
        """The names of the attributes of the policy that it does not have with these values."""
        return [name for name, value in values.items() if not same_values(getattr(self.policy, name, None), value)]

    def close(self) -> None:
        """Leave the other learners."""
        if self._ranks is not None:
            leave()

    @property
    def _is_first(self) -> bool:
        return self._ranks is None or self._ranks.rank == 0


@block
def _shown_in_script() -> Iterator[None]:
    """A context without warnings, because the script has shown them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@block
def _global_random(states: Mapping[str, Any] | None) -> Iterator[None]:
    """A context with these states of the global random generators; None for the current ones."""
    before = global_random_states()
    if states is not None:
        set_global_random_states(states)
    try:
        yield
    finally:
        set_global_random_states(before)


def _own(leaf: Any) -> Any:
    """A tensor or array in memory of this process, which the policy may change and keep."""
    copied = np.array(leaf)
    return copied if copied.dtype.hasobject else torch.from_numpy(copied)


def array_of(value: Any) -> Any:
    """The array of a tensor; other values unchanged."""
    return tensor_to_array(value) if isinstance(value, Tensor) else value


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {name: _on_cpu(part) for name, part in value.items()}
    return type(value)(map(_on_cpu, value)) if type(value) in (list, tuple) else value


def own_state(state: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """What a learner has of its own, for a saved state: its random generators, and the attached objects that differ from those
    of the first one.

    Args:
        state: its state, a result of `Learner.state`.
        first: the state of the first learner.
    """
    others = first[_ATTACHED]
    attached = {name: it for name, it in state[_ATTACHED].items() if not same_values(it, others.get(name), dtypes=True)}
    return {**state["learn"], **({_ATTACHED: attached} if attached else {})}


def without_attached(own: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A result of `own_state` without these attached objects, for which the learner takes those of the first one."""
    return {**own, _ATTACHED: {name: it for name, it in own.get(_ATTACHED, {}).items() if name not in names}}


# Requests.


def open_store(objects: dict[str, Any], address: Callable[[], str]) -> Copied[tuple[str, int]]:
    """Open the store at which the learners meet. Returns the address of this machine, and the port."""
    store, port = offer()
    objects["store"] = store
    return Copied((address(), port))


def make_learner(objects: dict[str, Any], recipe: Recipe, rank: int, size: int, address: tuple[str, int] | None) -> None:
    """Make a learner; several wait for each other."""
    ranks, device = None, recipe.cfg.device
    if device == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if address is not None:
        ranks = meet(objects["store"] if rank == 0 else address, rank, size, recipe.timeout_s, device)
    objects[_LEARNER] = None  # the group is left also if the policy cannot be made
    try:
        objects[_LEARNER] = Learner(recipe, ranks)
    except BaseException:
        if ranks is not None:
            leave()
        raise


def load_state(objects: dict[str, Any], state: Copied[Any], own: Copied[Any]) -> None:
    """Load a state, as `Learner.load`."""
    objects[_LEARNER].load(state.value, own.value)


def attributes_apart(objects: dict[str, Any], values: Copied[Any]) -> list[str]:
    """Compare attributes, as `Learner.attributes_apart`."""
    return objects[_LEARNER].attributes_apart(values.value)  # type: ignore[no-any-return]


def learn(objects: dict[str, Any], batch: Any, randoms: dict[str, Any], modes: TorchModes | None, wants_state: bool) -> Any:
    """Learn from a batch, as `Learner.learn`."""
    return objects[_LEARNER].learn(batch, randoms, modes, wants_state)


def left_by_error(objects: dict[str, Any]) -> Any:
    """What a batch has left that has ended by an error, as `Learner.left_by_error`."""
    return objects[_LEARNER].left_by_error()


def read_state(objects: dict[str, Any]) -> Any:
    """The state of a learner, as `Learner.state`."""
    return Copied(objects[_LEARNER].state())


def recipe_of(policy: Any, learners: int) -> Recipe:
    """The recipe for the learners of a policy.

    Raises:
        ValueError: the batch size cannot be divided between the learners.
        TypeError: an argument of its constructor cannot be pickled.
    """
    # The first values: those that reset_config has changed since are part of the state.
    cfg = copy.deepcopy(policy.cfg).override(policy.first_settings)
    own = {f"learners.{name}": value for name, value in type(cfg.learners)().to_dict().items()}
    own["learn.batch_size"] = _batch_size_of_each(cfg.learn.batch_size, learners)
    cfg.override(own)
    try:
        given = policy.constructed_with.with_cfg(cfg, own)
    except LookupError:
        raise ValueError(
            f"the constructor of {type(policy).__name__} does not get its configuration as an argument, so that its learners "
            "would have learners too: pass cfg to it."
        ) from None
    timeout_s, owner = policy.cfg.learners.timeout_s, policy.hook_metrics.owner
    return Recipe(type(policy), cfg, given, torch_threads_here(), timeout_s, owner)


def _batch_size_of_each(batch_size: int, learners: int) -> int:
    if batch_size % learners:
        raise ValueError(
            f"policy.learn.batch_size={batch_size} cannot be divided between policy.learners.num_learners={learners}: choose a "
            "multiple."
        )
    return batch_size // learners
