"""Learner groups: the processes or actors that learn in place of the process of the script."""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from ding_lite.basics import add_note, require_extra
from ding_lite.basics.blocks import block
from ding_lite.basics.global_random import global_random_states, set_global_random_states
from ding_lite.basics.messages import describe_error
from ding_lite.basics.torch_modes import torch_modes_here
from ding_lite.data import Tree, flatten, nested
from ding_lite.data.trees import map_leaves
from ding_lite.engine.lanes import waiting_for_process
from ding_lite.policy_base.config_sections import LearnersConfig
from ding_lite.policy_base.data_parallel import number_kind
from ding_lite.policy_base.learner_sync_checks import Agreement, ScriptAttributes, plain_settings
from ding_lite.policy_base.learner_workers import (
    Answer,
    Failed,
    array_of,
    attributes_apart,
    learn,
    left_by_error,
    load_state,
    make_learner,
    open_store,
    own_state,
    read_state,
    recipe_of,
)
from ding_lite.policy_base.live_settings import FixedSettingError
from ding_lite.policy_base.sent_warnings import show_warnings
from ding_lite.processes import Copied, Host, Patience, ProcessHost, WorkerDied, gather_results, release_hosts
from ding_lite.ranks import RankError, current_ranks

_logger = logging.getLogger(__name__)

_OF_RAY = ("ray_address", "num_cpus_per_learner", "num_gpus_per_learner", "learner_resources")
_PATIENCE = Patience(attempts=6, backoff_s=1.0)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class LearnerGroup:
    """The learners of a policy. The policy of the script acts, and has their weights after each batch; it takes the rest of
    their state when its own is read or changed.

    Learners start with the first batch. They hold the state of the policy then, and get it again after each change, such as
    `load_state_dict`.

    Args:
        policy: the policy.

    Raises:
        ValueError: settings that do not fit each other, or torchrun has started this process.
        TypeError: an argument of its constructor cannot be pickled.
        ImportError, ConnectionError: Ray is not installed, or no cluster answers.
    """

    def __init__(self, policy: Any) -> None:
        self._policy, self._cfg = policy, policy.cfg.learners
        self._make_host = _host_factory(self._cfg, f"the policy.learners of {type(policy).__name__}")
        recipe_of(policy, self._cfg.num_learners)  # raises ValueError
        self._hosts: list[Host] = []
        self._must_send = True  # the learners do not have the policy's state
        self._is_ahead = False  # the policy does not have the learners' state
        self._kept: list[dict[str, Any]] | None = None  # the state of each learner after the last batch, with restart
        self._own_states: list[dict[str, Any]] = []  # of all learners but the first
        self._lost = ""  # why the state of the learners is lost
        self._is_following = False  # the policy is being given something of the learners
        self._agreement: Agreement | None = None
        self._attributes = ScriptAttributes(policy)

    def __deepcopy__(self, memo: dict[int, Any]) -> LearnerGroup:
        """The group of a copy of the policy, with learners of its own."""
        copied = memo[id(self)] = object.__new__(type(self))
        vars(copied).update(vars(self))
        copied._policy = copy.deepcopy(self._policy, memo)
        copied._hosts, copied._must_send, copied._is_ahead, copied._kept = [], True, False, None
        copied._agreement, copied._attributes = None, copy.deepcopy(self._attributes)
        copied._own_states = copy.deepcopy(self._own_states)
        return copied

    def __reduce__(self) -> NoReturn:
        raise TypeError("a policy with learners cannot be sent to another process: send its state_dict().")

    def learn(self, batch: Tree) -> dict[str, Any]:
        """Learn from a batch. Returns a dict to log.

        Raises:
            WorkerDied: a learner has ended, or hung and was killed.
            RankError: the learners could not learn together, or their hooks have logged other names.
            ValueError: there are fewer rows than learners.
            RuntimeError: weights, settings or optimizers of the policy were changed by other means than its methods; or hooks
                have set other settings in one learner than in another.
            Exception: the error of a hook, in a learner.
        """
        self._require_state()
        self._require_unchanged()
        parts, rows = self._parts(batch)
        answers = self._answers(parts)
        if self._cfg.restart:
            self._kept = [answer.state for answer in answers if answer.state is not None]
        with self._following():
            self._adopt(answers[0])
        self._follow_settings(answers)
        self._policy.hook_metrics.aggregate([answer.metrics for answer in answers], as_own=True)
        output = _joined(answers, rows)
        show_warnings([one for answer in answers for one in answer.warnings])
        return output

    def take(self, is_replaced: bool = False) -> None:
        """Give the learners' state to the policy of the script, if it does not have it.

        Args:
            is_replaced: whether the policy gets another state right after it, so that a lost one is no error.

        Raises:
            WorkerDied: a learner has ended, and the state is lost.
            RuntimeError: it was lost before; or the policy was changed by other means than its methods, and this change would
                be lost.
        """
        if self._is_following or (self._lost and is_replaced):
            return
        self._require_state()
        if not self._is_ahead:
            return
        if self._agreement is not None and not is_replaced:
            self._agreement.require_same_tensors(self._policy)
        self._warn_of_attributes()
        try:
            states = self._kept or self._asked(read_state)
        except BaseException as error:
            if isinstance(error, WorkerDied) or not isinstance(error, Exception):  # Ctrl-C: an answer will not be taken
                self._end_after(error, was_ahead=True)
            if is_replaced and isinstance(error, WorkerDied):
                return
            raise
        settings = plain_settings(self._policy.cfg)
        with self._following():
            self._policy.take_learned(_with_batch_size(states[0], lambda part: part * len(states)))
        self._own_states = [own_state(state, states[0]) for state in states[1:]]
        self._is_ahead = False
        has_others = plain_settings(self._policy.cfg) != settings  # from a hook
        self._agreement = Agreement(self._policy, None if has_others else self._agreement)

    def note_change(self) -> None:
        """Note that the policy of the script has changed: the learners get its state before the next batch."""
        if not self._is_following:
            self._must_send, self._is_ahead, self._kept, self._lost = True, False, None, ""

    def require_divisible(self) -> None:
        """Check that the batch size can be divided between the learners.

        Raises:
            FixedSettingError: it cannot.
        """
        try:
            recipe_of(self._policy, self._cfg.num_learners)
        except ValueError as error:
            raise FixedSettingError(str(error)) from None

    @block
    def _following(self) -> Iterator[None]:
        self._is_following = True
        try:
            yield
        finally:
            self._is_following = False
            self._attributes.note(self._policy)

    @property
    def own_states(self) -> list[dict[str, Any]]:
        """What all learners but the first have of their own, see `own_state`, for a saved state."""
        return copy.deepcopy(self._own_states)

    @own_states.setter
    def own_states(self, saved: Sequence[Mapping[str, Any]]) -> None:
        self._own_states = [dict(one) for one in saved]

    def release(self) -> None:
        """End the learners. The next batch starts them again in the same state."""
        try:
            if not self._lost:
                self.take()
        except BaseException as error:
            self._end_after(error, self._is_ahead)
            raise
        self._close()

    def _answers(self, parts: Sequence[Any]) -> list[Answer]:
        attempts, first_failure = 0, ""
        while True:
            was_ahead = self._is_ahead
            try:
                self._prepare()
                self._is_ahead = True  # also after an error, since learners may have changed
                randoms = global_random_states()
                modes = torch_modes_here()
                answers = self._asked(learn, [(part, randoms, modes, self._cfg.restart) for part in parts])
                if self._cfg.restart:
                    self._policy.hook_metrics.log_value("learners_restarted", attempts, reduce="sum")
                return answers
            except (WorkerDied, RankError) as error:
                self._end_after(error, was_ahead)
                attempts, first_failure = attempts + 1, first_failure or describe_error(error)
                if not self._cfg.restart or attempts >= _PATIENCE.attempts:
                    if attempts > 1:
                        add_note(error, f"this was attempt {attempts} of the same batch; the first ended with {first_failure}")
                    raise
                _logger.info("the learners of %s are started again: %s", type(self._policy).__name__, error)
                time.sleep(_PATIENCE.wait_s(attempts))
            except Exception as error:
                # The policy continues from what the learners have, as without them. The first error is the one to report.
                self._kept = None
                with contextlib.suppress(Exception):
                    self._take_left()
                with contextlib.suppress(Exception):
                    self.take()
                    was_ahead = False
                if len(self._hosts) > 1:  # they cannot go on together
                    self._end_after(error, was_ahead)
                raise
            except BaseException as error:  # Ctrl-C: an answer will not be taken
                self._end_after(error, was_ahead)
                raise

    def _end_after(self, error: BaseException, was_ahead: bool) -> None:
        """End the learners. Their state before the batch is lost, unless it is kept or the policy has it."""
        self._is_ahead = was_ahead
        self._close()
        if was_ahead and self._kept is None:
            self._is_ahead, self._lost = False, describe_error(error)

    def _require_state(self) -> None:
        if self._lost:
            raise RuntimeError(
                f"the state of the learners of {type(self._policy).__name__} is lost, because they have ended "
                f"({self._lost:.200}): continue from the last checkpoint, with resume, or load a state. With "
                "policy.learners.restart=True, learners are restarted in the same state."
            )

    def _require_unchanged(self) -> None:
        """Refuse changes of the policy that its learners would not have."""
        if self._hosts and self._agreement is not None:
            self._agreement.require_same_settings(self._policy, is_sent=self._must_send)
            if not self._must_send:
                self._agreement.require_same_tensors(self._policy)
        self._warn_of_attributes()

    def _warn_of_attributes(self) -> None:
        """Warn of attributes that the script has set since the last batch."""
        if self._hosts and not self._must_send:  # otherwise `_prepare` compares them with those of the learners
            self._attributes.warn_of_changes(self._policy)

    def _follow_settings(self, answers: Sequence[Answer]) -> None:
        """Take settings that hooks have changed."""
        if any(answer.settings != answers[0].settings for answer in answers):
            error = RuntimeError(
                f"hooks of {type(self._policy).__name__} have changed settings, not to the same values in all learners: make "
                "the change depend on what all of them have, such as train_iter, and not on a batch."
            )
            self._end_after(error, was_ahead=True)
            raise error
        if answers[0].settings is not None:
            self.take()

    def _take_left(self) -> None:
        """Take the states of the global random generators, and the warnings, after an error."""
        left = self._asked(left_by_error)
        if left[0] is not None:
            set_global_random_states(left[0][0])
        show_warnings([one for found in left if found is not None for one in found[1]])

    def _prepare(self) -> None:
        """Start the learners if there are none, and send them the policy's state if it has changed."""
        if not self._hosts:
            self._start()
            self._must_send = True
        if not self._must_send:
            return
        state, own, size = self._policy.state_to_learn_from(), self._own_states, len(self._hosts)
        each = [*([None] + [*own, *[None] * size])[:size]]
        self._asked(load_state, [(Copied(_with_batch_size(state, lambda whole: whole // size)), Copied(one)) for one in each])
        self._must_send = False
        self._agreement = Agreement(self._policy)
        if own_values := self._attributes.since_made(self._policy):
            self._attributes.warn(self._asked(attributes_apart, [(Copied(own_values),)] * size)[0])
        self._attributes.note(self._policy)

    def _start(self) -> None:
        size, name = self._cfg.num_learners, type(self._policy).__name__
        recipe = recipe_of(self._policy, size)
        make, address_of = self._make_host()
        try:
            for index in range(size):
                self._hosts.append(make(f"learner {index} of {name}", timeout_s=self._cfg.timeout_s, depth=2))
            address = None
            if size > 1:
                request = self._hosts[0].submit(open_store, address_of)
                address = gather_results(self._hosts[:1], [request])[0].value
            self._asked(make_learner, [(recipe, index, size, address) for index in range(size)], lasting=True)
        except BaseException:
            self._close()
            raise

    def _asked(self, fn: Callable[..., Any], each: Sequence[tuple[Any, ...]] = (), lasting: bool = False) -> list[Any]:
        """The answers of all learners to a request."""
        args = each or [()] * len(self._hosts)
        with waiting_for_process():
            requests = [host.submit(fn, *own, lasting=lasting) for host, own in zip(self._hosts, args)]
            answers = gather_results(self._hosts, requests)
        failed = next((one for one in answers if isinstance(one, Failed)), None)
        if failed is not None:
            raise RankError(failed.reason)
        return [one.value if isinstance(one, Copied) else one for one in answers]

    def _close(self) -> None:
        hosts, self._hosts = self._hosts, []
        release_hosts(hosts, for_good=True)

    def _adopt(self, answer: Answer) -> None:
        """Take the weights of a learner."""
        assert answer.weights is not None
        assert answer.randoms is not None
        set_global_random_states(answer.randoms)
        weights = answer.weights
        if weights.are_tensors:
            weights = weights._replace(values=[torch.from_numpy(np.array(one)) for one in weights.values])
        self._policy.copy_weights(weights)
        self._policy.num_steps = answer.num_steps
        if self._agreement is not None:
            self._agreement.note_weights()

    def _parts(self, batch: Tree) -> tuple[list[Any], list[int]]:
        """The part of each learner, arrays by name, and its number of rows; of a rollout, some of the environments."""
        size = self._cfg.num_learners
        columns = {name: map_leaves(lambda leaf: np.asarray(array_of(leaf)), column) for name, column in nested(batch).items()}
        if size == 1:
            return [columns], [1]
        axis = 1 if self._policy.learns_from == "rollouts" and self._policy.is_rollout(batch) else 0
        path, first = next(flatten(columns))
        count, rows = first.shape[axis], "environments of a rollout" if axis else "rows of a batch"
        if count < size:
            raise ValueError(f"{count} {rows} cannot be divided between policy.learners.num_learners={size}: lower it.")
        for other, leaf in flatten(columns):
            if leaf.ndim <= axis or leaf.shape[axis] != count:
                raise ValueError(
                    f"a batch cannot be divided between learners: {'/'.join(other)} has the shape {leaf.shape}, and "
                    f"{'/'.join(path)} {first.shape}: expected {count} {rows} in both."
                )
        ends = [count * (index + 1) // size for index in range(size)]
        pieces = [slice(begin, end) for begin, end in zip([0, *ends], ends)]
        parts = [map_leaves(lambda leaf, piece=piece: leaf[(slice(None),) * axis + (piece,)], columns) for piece in pieces]
        return parts, [piece.stop - piece.start for piece in pieces]


def _host_factory(cfg: LearnersConfig, who: str) -> Callable[[], tuple[Callable[..., Host], Callable[[], str]]]:
    """A function that returns what makes the hosts of a group, and a function for the address of a learner's machine."""
    if current_ranks() is not None:
        raise ValueError(
            f"{who} cannot start in a program that torchrun has started: set num_learners=0, or leave torchrun out."
        )
    if cfg.backend == "process":
        if multiprocessing.current_process().daemon:
            raise ValueError(
                f"{who} cannot start processes in a worker process, such as a member of a population with backend='process': "
                "set num_learners=0 there, or the backend 'ray'."
            )
        idle = [f"{name}={getattr(cfg, name)!r}" for name in _OF_RAY if getattr(cfg, name)]
        if idle:
            raise ValueError(f"{who} have backend='process', and {idle[0]} is a setting of backend='ray'.")
        return lambda: (ProcessHost, _this_machine)
    require_extra("ray", "ray", "policy.learners.backend='ray'")
    # By name, because it imports Ray, and because it is in a layer above this one.
    hosts = importlib.import_module("ding_lite.distributed.ray_hosts")

    def make() -> tuple[Callable[..., Host], Callable[[], str]]:
        factory = hosts.host_factory(
            who,
            cfg.num_learners,
            restart=False,
            address=cfg.ray_address,
            num_cpus=cfg.num_cpus_per_learner,
            num_gpus=cfg.num_gpus_per_learner,
            custom=cfg.learner_resources,
            unit="learner",
        )
        return factory, hosts.machine_address

    make()  # raises errors of the cluster before the run
    return make


def _this_machine() -> str:
    return "127.0.0.1"


def _with_batch_size(state: Mapping[str, Any], change: Callable[[int], int]) -> dict[str, Any]:
    """A state with another batch size, if it has one: each of several learners has its part."""
    settings = dict(state.get("settings", {}))
    if "learn.batch_size" in settings:
        settings["learn.batch_size"] = change(settings["learn.batch_size"])
    return {**state, "settings": settings} if settings else dict(state)


def _joined(answers: Sequence[Answer], rows: Sequence[int]) -> dict[str, Any]:
    """What the learners log for a batch, as one value by name.

    An array of the rows of each learner's part, or of its environments, is joined in their order. Numbers that are whole in all
    learners are sums, as of counts, and other numbers are means, weighted by the rows; so are the elements of arrays with
    another first size. Everything else is that of the first learner.

    Raises:
        RankError: the learners log other names, or arrays of shapes that do not fit each other.
    """
    first = answers[0].output
    for index, answer in enumerate(answers):
        if others := sorted(first.keys() ^ answer.output.keys()):
            raise RankError(
                f"learner 0 and learner {index} have not logged the same: only one of them has {', '.join(others)}. Let hooks "
                "return the same names for every batch."
            )
    return {name: _one_value(name, answers, rows) for name in first}


def _one_value(name: str, answers: Sequence[Answer], rows: Sequence[int]) -> Any:
    values, dtype = [answer.output[name] for answer in answers], answers[0].tensors.get(name)
    value = values[0]
    if len(values) > 1 and all(_can_be_joined(one) for one in values):
        joined = _one_array(name, [np.asarray(one) for one in values], rows)
        value = joined if isinstance(value, np.ndarray) else joined.item()
    if dtype is None:
        return value
    made = torch.from_numpy(np.array(value))
    return made if dtype in _WHOLE else made.to(dtype)  # a sum may be too large for the dtype of its numbers


def _can_be_joined(value: Any) -> bool:
    return value.dtype.kind in "biufc" if isinstance(value, np.ndarray) else number_kind(value) is not None


def _one_array(name: str, arrays: Sequence[Any], rows: Sequence[int]) -> Any:
    first, kinds = arrays[0], {one.dtype.kind for one in arrays}
    if all(one.ndim and len(one) == count for one, count in zip(arrays, rows)):
        return np.concatenate(arrays)
    if any(one.shape != first.shape for one in arrays):
        raise RankError(
            f"learners have logged {name!r} with the shapes {', '.join(str(one.shape) for one in arrays)}, for "
            f"{', '.join(map(str, rows))} rows: log a number, or an array with one element for each row."
        )
    if kinds <= set("iu"):
        return np.array(np.sum(arrays, axis=0, dtype=np.int64))
    if kinds <= set("iufc"):
        real = next(one for one in arrays if one.dtype.kind in "fc")
        are_equal = all(np.array_equal(one, real) for one in arrays)
        return real if are_equal else np.array(np.average(arrays, axis=0, weights=rows))
    return first
