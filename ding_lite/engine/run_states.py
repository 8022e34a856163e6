"""Run states: everything that outlives an iteration, gathered through the pipeline and its contracts."""

from __future__ import annotations

import contextlib
import copy
import numbers
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ding_lite.basics.checkpoint_files import plain
from ding_lite.basics.global_random import load_global_random, require_global_random, save_global_random
from ding_lite.basics.messages import add_note, describe_error
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.basics.run_files import RunFiles
from ding_lite.basics.storages import Storage
from ding_lite.basics.value_types import require_kept_type
from ding_lite.engine.deferrals import Deferrals
from ding_lite.engine.lost_entries import lost_entries
from ding_lite.engine.network_states import NetworkStates
from ding_lite.engine.renamed_middleware import with_new_names
from ding_lite.engine.run_calls import RunCalls, is_sound_record
from ding_lite.engine.run_parts import environments_of, environments_without_state, network_holder, parts_of
from ding_lite.engine.setting_states import SettingStates
from ding_lite.engine.token_networks import Network
from ding_lite.engine.unsaved_state import Memories
from ding_lite.pipeline.contexts import family_of, is_scalar, keep_exactly, kept_fields, settable_fields
from ding_lite.pipeline.contracts import LANES, leader_of
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.used_middleware import methods_of

FORMAT = 2
"""Version of the format of `Task.state_dict`."""

_KEYS = ("format", "done", "max_lag", "pipeline", "context", "parts", "without_state", "lanes", "global_random")

_SOUND = "pass what task.state_dict() returned, or resume from an earlier state"


class RunStateError(ValueError):
    """A saved state does not fit this task, or a part of the run cannot be saved."""


class RunStateMixin:
    """The part of a task that saves and restores a run."""

    _ctx: Any
    _entries: list[Entry]
    _network: Network | None
    _deferrals: Deferrals
    _iterating: bool
    _ran: bool
    max_lag: int
    storage: Storage | None
    """Where the folder of the run is copied, as passed to `start(storage_path=...)`; None for nowhere."""

    def _clear_run_state(self) -> None:
        self._at_pause: list[Callable[[], None]] = []
        self._is_paused = False
        self._calls = RunCalls()
        self._resume: Path | None = None
        self.storage = None
        self._new_episodes = False
        self._memories = Memories()
        self._network_states, self._setting_states = NetworkStates(), SettingStates()
        self._family: object = None  # of the context of the first iteration
        self._kept_at_start: tuple[str, ...] | None = None  # the fields that the context kept before the first iteration
        self._loaded_lanes: Mapping[str, Any] | None = None  # of a loaded state, until the lanes are made
        self._loaded_for: tuple[tuple[object, ...], int] | None = None  # the pipeline, the context and its next iteration

    def between_iterations(self, fn: Callable[[], None]) -> None:
        """Call `fn` once between two iterations, when no middleware runs. There `state_dict` can be called.

        It is called on the thread that called `run`: after this iteration; where iterations overlap, after the iteration that
        is `1 + max_lag` later, or after the last one of the run. So the place depends only on this iteration. The call
        changes nothing in the iterations that follow. If the run ends before by `finish`, an error or `stop`, `fn` is not
        called. In a `begin_run`, the call is after the first iteration; in an `end_run`, after all of them. Outside of a run
        it is called at once.

        Args:
            fn: a function without arguments. An error that it raises ends the run.
        """
        if not self._iterating or self._is_paused:
            fn()
        elif self._network is not None:
            self._network.pause(self._paused_call(fn))
        else:
            self._at_pause.append(self._paused_call(fn))

    @property
    def has_deferred_work(self) -> bool:
        """Whether deferred work is in progress, for which `state_dict` would wait."""
        return self._deferrals.is_busy

    @property
    def resumed_from(self) -> Path | None:
        """The folder of the run that this one continues, by `start(resume=...)`; None for a new run."""
        return self._resume

    @property
    def is_catching_up(self) -> bool:
        """Whether the last call of `run` was left out, and the state that was loaded is that of a later call.

        Code between two calls that changes an object of the pipeline, such as `buffer.clear()`, is part of such a state
        already: execute it only `if not task.is_catching_up`.
        """
        return self._calls.is_catching_up

    @property
    def is_complete(self) -> bool:
        """Whether the last call of `run` has done everything, `end_run` included."""
        return self._calls.are_complete

    def _load_resumed(self) -> None:
        """Load the latest state of the run to resume, the first time that this is called."""
        if self._resume is None or self._calls.have_begun:
            return
        files, done = RunFiles(self._resume), None
        for _, choose in methods_of(self._entries, "choose_state"):  # the same one in several processes
            done = choose(files.saved())
        state, path = files.load(done, check=lambda state: require_sound(state) if _has_this_format(state) else None)
        try:
            self.load_state_dict(state)
        except Exception as error:
            add_note(error, f"when the run in {self._resume} was resumed from {path}")
            raise

    def _note_start(self) -> None:
        """Note, once and before the first iteration or a loaded state, what a run may change and a state has to hold."""
        if self._kept_at_start is None:
            self._kept_at_start, self._family = kept_fields(self._ctx), family_of(self._ctx)
        parts = self._parts()
        self._network_states.begin(parts)
        self._setting_states.begin(parts)

    def _largest(self) -> str:
        """The largest parts with a size in bytes, for messages."""
        sizes = {name: _size_of(part) for name, part in self._parts().items()}
        known = sorted(((size, name) for name, size in sizes.items() if size is not None), reverse=True)[:3]
        if not known:
            return "No object of the pipeline says how large it is."
        return f"The largest objects are {', '.join(f'{name} with {size / 2**20:,.0f} MB' for size, name in known)}."

    def _save_run(self) -> None:
        """Call `save_run` of each middleware that has it, between two iterations."""
        for save in self._savers():
            self._paused_call(save)()

    def _savers(self) -> list[Callable[[], None]]:
        return [save for _, save in methods_of(self._entries, "save_run")]

    def _paused_call(self, fn: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            self._is_paused = True
            try:
                fn()
            finally:
                self._is_paused = False

        return call

    def _call_at_pause(self) -> None:
        """Call what an iteration of a plain loop, or an `end_run`, asked for."""
        while self._at_pause:
            self._at_pause.pop(0)()

    def state_dict(self, in_pieces: bool = False) -> dict[str, Any]:
        """The state of the whole run, as plain data: what `load_state_dict` needs to go on bit for bit.

        It holds the kept fields of the context; the state of every middleware, and of every object in the `uses` of contracts,
        that has `state_dict` and `load_state_dict`; and what lanes and edges hold where iterations overlap. Call it before or
        after `run`, or in a function passed to `between_iterations`.

        Args:
            in_pieces: whether replay buffers give `NumberedRows` instead of copies of all their rows, for `RunFiles.save`.

        Raises:
            RuntimeError: an iteration is running.
            RunStateError: a kept field or a part is not plain data, or deferred work has not ended after a minute; the message
                names it. Or the script has replaced `task.ctx` after the first call of `run`.
        """
        if self._iterating and not self._is_paused:
            raise RuntimeError(
                "task.state_dict() during an iteration, where its parts do not fit together: pass the function that calls it "
                "to task.between_iterations()."
            )
        left = self._deferrals.settle()
        if left:
            raise RunStateError(
                f"deferred work does not end, and a state cannot hold it: {'; '.join(work.description for work in left)}. Let "
                "it end by itself; task.stopping becomes true only at the end of the run."
            )
        if self._family is not None and family_of(self._ctx) is not self._family:
            raise RunStateError(
                "task.ctx was replaced during the run, or between two calls to run, and a resumed run may count the iterations "
                "in another way: set its fields instead."
            )
        self._warn_of_lost_memories()
        network = self._network if self._network is not None else self._resting_network()
        ctx = self._ctx if self._network is None else self._network.ctx
        step = self._next_step(ctx)
        lanes = copy.deepcopy(self._lanes_to_load()) if network is None else network.state()
        kept = {name: _plain_copy(ctx, name) for name in kept_fields(ctx) if name != "total_step" and hasattr(ctx, name)}
        later = [name for name in kept if self._kept_at_start is not None and name not in self._kept_at_start]
        parts, runs = self._parts(), self._calls.state(step)
        networks, settings = self._network_states.state_dict(parts), self._setting_states.state_dict(parts)
        return {
            "format": FORMAT,
            "done": sum(done for done, _, _ in runs),
            "runs": runs,
            "max_lag": self.max_lag,
            "pipeline": [entry.name for entry in self._entries],
            "context": {"total_step": step, "kept": kept, **({"kept_later": later} if later else {})},
            "parts": {name: _state_of(part, in_pieces) for name, part in parts.items()},
            **({"networks": networks} if networks else {}),
            **({"settings": settings} if settings else {}),
            "without_state": environments_without_state(self._entries),
            "lanes": lanes,
            "global_random": save_global_random(),
        }

    def _next_step(self, ctx: Any) -> int:
        """The number of the iteration after the one of this context."""
        return int(ctx.total_step) + self._ran  # a new or loaded context has not run yet

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a saved state. Call it after the last `task.use`, before `run`.

        The following calls of `run` leave out as many iterations as the state has done, so the same script does what is left. A
        call that `finish` or an error had ended returns at once.

        Raises:
            RunStateError: the state is that of another pipeline, another lag, or an incompatible version, and nothing is
                changed; or a part of it is damaged, and the parts before it are loaded already: start the program again.
        """
        if self._iterating:
            raise RuntimeError("task.load_state_dict() during a run: call it before task.run().")
        require_sound(state)
        state = with_new_names(state, (*(entry.name for entry in self._entries), *self._parts()))
        self._note_start()
        self._require_fit(state)
        parts, without = self._parts(), state["without_state"]
        if without and not self._new_episodes:
            raise RunStateError(
                f"{', '.join(without)} could not be saved, because it has no state_dict: the episodes that were running there "
                "cannot be continued. Make environments with make_envs, which restores them; or pass new_episodes=True to "
                "task.start() to begin new episodes there, so that the run is not the same as the unbroken one."
            )
        keep_exactly(self._ctx, (*(self._kept_at_start or ()), *state["context"].get("kept_later", ())))
        if self._ran:  # the context of the last iteration has its data
            self._ctx = self._ctx.renew()
        ctx, saved = self._ctx, state["context"]
        for name, value in saved["kept"].items():
            object.__setattr__(ctx, name, copy.deepcopy(value))
        object.__setattr__(ctx, "total_step", saved["total_step"])
        self._forget_last_run()
        self._setting_states.load_state_dict(state.get("settings", {}), parts)  # first: policies compare theirs with the state
        seeds = {name: attribute_of(part, "run_seed") for name, part in parts.items()}
        for name in sorted(parts, key=lambda name: leader_of(parts[name]) is not None):  # followers last
            if name in state["parts"]:
                with self._current():  # an evaluator defers what it had begun
                    self._load_part(name, parts[name], state["parts"][name])
            else:
                warnings.warn(
                    f"an earlier version of ding_lite saved this run without its {name}, which begins anew.", stacklevel=2
                )
        self._network_states.load_state_dict(state.get("networks", {}), parts)
        for words in (*lost_entries(parts, state["parts"]), *_other_seeds(parts, seeds)):
            warnings.warn(words, stacklevel=2)
        self._calls.load(state.get("runs", [[state["done"], None, None]]), saved["total_step"])
        self._loaded_lanes, self._family = state["lanes"], family_of(ctx)
        self._loaded_for = self._lane_key(), saved["total_step"]
        load_global_random(state["global_random"])

    def _load_part(self, name: str, part: Any, state: Any) -> None:
        is_env = any(part is env for env in environments_of(self._entries))
        try:
            part.load_state_dict(state)
        except Exception as error:
            if _is_raw(error, part) and not (is_env and self._new_episodes):
                raise RunStateError(
                    f"the state of {name} cannot be loaded ({describe_error(error)}): it is damaged, or another "
                    "version of ding_lite saved it. To continue from the state before, remove the file of this one."
                ) from error
            if not is_env:
                add_note(error, f"when the state of {name} was loaded")
                raise
            if not self._new_episodes or not isinstance(error, (TypeError, ValueError, LookupError, AttributeError)):
                add_note(
                    error,
                    f"when the episodes of {name} were restored. To begin new ones there, pass new_episodes=True to "
                    "task.start(); the run is then not the same as the unbroken one.",
                )
                raise
            warnings.warn(f"{name} begins new episodes, because the saved ones cannot be restored: {error}", stacklevel=5)

    def _begin_memories(self) -> None:
        for words in self._memories.begin(self._entries, self._ctx):
            warnings.warn(words, stacklevel=4)

    def _warn_of_lost_memories(self) -> None:
        for words in (*self._memories.changes(self._entries), *self._network_states.warnings(self._parts())):
            warnings.warn(words, stacklevel=4)
        self._warn_of_settings()

    def _warn_of_settings(self) -> None:
        """Warn of settings that the run has changed without effect, or that no state can have."""
        for words in self._setting_states.warnings(self._parts()):
            warnings.warn(words, stacklevel=4)

    def _require_fit(self, state: Mapping[str, Any]) -> None:
        names = [entry.name for entry in self._entries]
        if state["pipeline"] != names:
            is_shorter = state["pipeline"][: len(names)] == names
            fix = "call task.use for all middleware before the first task.run" if is_shorter else "use the same middleware"
            raise RunStateError(
                f"the state belongs to the pipeline {', '.join(state['pipeline'])}; this one is {', '.join(names)}: {fix}, in "
                "the same order."
            )
        if state["max_lag"] != self.max_lag:
            raise RunStateError(
                f"the state was saved with max_lag={state['max_lag']}, and this task has max_lag={self.max_lag}: start it with "
                "the same one."
            )
        mine, theirs = self._parts(), state["parts"].keys()
        new = {name for name, part in mine.items() if attribute_of(part, "may_lack_state", False)}
        odd = sorted((mine.keys() ^ theirs) - (new - theirs))
        if odd:
            raise RunStateError(
                f"the state was saved by a pipeline with other objects: {', '.join(odd)} is only in one of the two. Make the "
                "same objects, and name the same ones in contracts."
            )
        later = settable_fields(self._ctx).intersection(state["context"].get("kept_later", ()))
        unknown = [name for name in state["context"]["kept"] if name not in (*(self._kept_at_start or ()), *later)]
        if unknown:
            raise RunStateError(
                f"the state has ctx.{unknown[0]}, which {type(self._ctx).__name__} does not keep: use the context class of the "
                "saved run."
            )
        for name, value in state["context"]["kept"].items():
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            _require(f"['context']['kept'][{name!r}]", is_number or not _is_counter(self._ctx, name), value, "a number")
        for states, key in ((self._network_states, "networks"), (self._setting_states, "settings")):
            states.require_fit(state.get(key, {}), self._parts(), lambda words: RunStateError(f"{words}: {_SOUND}."))

    def _parts(self) -> dict[str, Any]:
        """Each object of the pipeline with a state, by a name that is the same whenever the script runs."""
        return parts_of(self._entries)

    def _lanes_to_load(self) -> Mapping[str, Any] | None:
        """What lanes held when a loaded state was saved; None if the script has changed the pipeline or the context since, so
        that lanes start anew, as after the same change between two calls of `run` of one process."""
        if self._loaded_for is None or self._loaded_for[0] != self._lane_key():
            return None
        return self._loaded_lanes if self._ctx.total_step - self._loaded_for[1] in (-1, 0) else None

    def _lane_key(self) -> tuple[object, ...]:
        return tuple(self._pipeline()), id(family_of(self._ctx)), kept_fields(self._ctx)

    def _pipeline(self) -> list[tuple[int, int]]:
        """Identifies the middleware and their wrappers; equal as long as none of them changes."""
        raise NotImplementedError

    def _resting_network(self) -> Network | None:
        """The lanes of the last run, if another run can continue with what they hold."""
        raise NotImplementedError

    def _forget_last_run(self) -> None:
        """Start the next run anew, from the context."""
        raise NotImplementedError

    def _current(self) -> AbstractContextManager[None]:
        """A block in which `current_task()` is this task."""
        raise NotImplementedError


def _other_seeds(parts: Mapping[str, Any], made_with: Mapping[str, Any]) -> Iterator[str]:
    """A warning if objects have another seed since they have loaded their states.

    Args:
        parts: the objects by name.
        made_with: the seed that each had before; None for objects without one.
    """
    for name, part in parts.items():
        seed, made = attribute_of(part, "run_seed"), made_with[name]
        if seed != made:
            yield (
                f"{name} was made with seed {made}, and the saved run had seed {seed}, with which it goes on, because the "
                f"state has its random generators. Make it with seed {seed}, or begin a new run with seed {made}."
            )
            return  # usually all differ


def require_sound(state: Any) -> None:
    """Raise an error if a state is not one of `Task.state_dict`, whatever the pipeline.

    Raises:
        RunStateError: the state has another format; an entry is missing, of another type, or out of its range; or a random
            state is not valid. The message names the entry.
    """
    if not isinstance(state, Mapping):
        raise RunStateError(f"the state is {state!r:.80} of type {type(state).__name__}, expected a dict: {_SOUND}.")
    if not _has_this_format(state):
        raise RunStateError(
            f"the state has format {state['format']}, and this version reads format {FORMAT}: use the version of ding_lite "
            "that saved it."
        )
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise RunStateError(f"the state has no {missing[0]!r}: {_SOUND}.")
    _require("['pipeline']", _is_list_of(str, state["pipeline"]), state["pipeline"], "a list of names")
    is_named = isinstance(state["parts"], Mapping) and _is_list_of(str, [*state["parts"]])
    _require("['parts']", is_named, state["parts"], "a dict of the states of objects by name")
    _require("['without_state']", _is_list_of(str, state["without_state"]), state["without_state"], "a list of names")
    _require_lanes(state["lanes"])
    context = state["context"]
    is_context = isinstance(context, Mapping) and {"total_step", "kept"} <= context.keys()
    _require("['context']", is_context, context, "a dict with 'total_step' and 'kept'")
    _require("['context']['kept']", isinstance(context["kept"], Mapping), context["kept"], "a dict of kept fields")
    later = context.get("kept_later", [])
    is_sound = _is_list_of(str, later) and set(later) <= context["kept"].keys()
    _require("['context']['kept_later']", is_sound, later, "a list of names of kept fields")
    step, done = context["total_step"], state["done"]
    _require("['context']['total_step']", _is_count(step), step, "an integer, 0 or more")
    _require("['done']", _is_count(done) and done <= step, done, f"a number of iterations from 0 to total_step, {step}")
    runs = state.get("runs", [[done, None, None]])  # earlier versions saved only the sum
    _require("['runs']", is_sound_record(runs, done), runs, f"a list of the calls of run, of {done} iterations together")
    try:
        require_global_random(state["global_random"], "the state's ['global_random']")
    except ValueError as error:
        raise RunStateError(f"{str(error).rstrip('.')}: {_SOUND}.") from None


def _has_this_format(state: Mapping[str, Any]) -> bool:
    return bool(state.get("format", FORMAT) == FORMAT)


def _require_lanes(lanes: Any) -> None:
    if lanes is not None:
        is_sound = isinstance(lanes, Mapping) and all(
            _is_list_of(kind, lanes.get(name))
            for name, kind in (("edges", Mapping), ("snapshots", Mapping), ("lanes", Mapping))
        )
        _require("['lanes']", is_sound, lanes, "None, or a dict with lists of dicts as 'edges', 'snapshots' and 'lanes'")
        for key, names in (("edges", {"edge", "tokens"}), ("snapshots", {"leader", "state"})):
            for index, one in enumerate(lanes[key]):
                _require(f"['lanes'][{key!r}][{index}]", names <= one.keys(), one, f"a dict with {sorted(names)}")
        for index, one in enumerate(lanes["edges"]):
            is_edge = isinstance(one["edge"], str) and isinstance(one["tokens"], (list, tuple))
            _require(f"['lanes']['edges'][{index}]", is_edge, one, "a dict with a name as 'edge' and a list as 'tokens'")
        _require("['lanes']['lanes']", len(lanes["lanes"]) == len(LANES), lanes["lanes"], f"a list of {len(LANES)} dicts")
        numbers, count = lanes.get("leaders", []), len(lanes["snapshots"])
        is_sound = _is_list_of(int, numbers) and all(0 <= number < count for number in numbers)
        _require("['lanes']['leaders']", is_sound, numbers, "a list of places in 'snapshots'")


def _require(key: str, is_sound: bool, found: Any, expected: str) -> None:
    if not is_sound:
        raise RunStateError(f"the state's {key} is {found!r:.80}, expected {expected}: {_SOUND}.")


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, kind) for one in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_counter(ctx: Any, name: str) -> bool:
    """Whether a field is a number of one of the library's contexts, which its middleware compute with."""
    owner = next((kind for kind in type(ctx).__mro__ if name in vars(kind).get("__annotations__", {})), object)
    return is_of_ding_lite(owner.__module__) and owner.__annotations__[name] in ("int", "float")


def _is_raw(error: Exception, part: Any) -> bool:
    """Whether an error of loading a part of this library is one of Python, numpy or torch, which does not say what is wrong."""
    is_ours = is_of_ding_lite(type(network_holder(part)).__module__)
    is_ambiguous = type(error) in (RuntimeError, ValueError) and "ambiguous" in str(error)
    return is_ours and (type(error) in (TypeError, KeyError, IndexError, AttributeError) or is_ambiguous)


def _size_of(part: Any) -> int | None:
    """The size in bytes that a part says it has; None if it says none, or if a change on another thread disturbs it."""
    with contextlib.suppress(Exception):
        size = part.nbytes
        return size if isinstance(size, int) else None
    return None


def _state_of(part: Any, in_pieces: bool) -> Any:
    method = attribute_of(part, "state_in_pieces") if in_pieces else None
    return method() if callable(method) else part.state_dict()


def _plain_copy(ctx: Any, name: str) -> Any:
    """A copy of a kept field.

    Raises:
        RunStateError: a file would give its value back with another type.
    """
    value = getattr(ctx, name)
    if is_scalar(value) and type(value) is not bytes:
        return value
    where = f"the kept field ctx.{name}"
    try:
        plain(value, where)
        require_kept_type(value, where)
    except (TypeError, ValueError) as error:
        raise RunStateError(str(error)) from None
    return copy.deepcopy(value)
