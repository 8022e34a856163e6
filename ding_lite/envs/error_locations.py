"""Error locations: environment, episode and step of an error."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Mapping
from typing import Any, NamedTuple

from ding_lite.basics import add_note
from ding_lite.envs.env_data_checks import EnvDataError, shown

_NO_EXIT = "An environment must not end the program: have it raise an error, or return terminated=True."


@dataclasses.dataclass(frozen=True)
class EnvLocation:
    """Where an environment raised an error: the attribute `env_location` of the exception, also from a worker process."""

    env: int | None
    """Index of the environment; None if the error is of all environments together."""

    name: str
    """Id or class name of the environment."""

    episode: int | None
    """Number of earlier episodes of this environment; None if unknown."""

    step: int | None = None
    """Step of the episode, from 0; None in the reset."""

    action: Any = None
    """The action of that step."""

    start: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Start of the episode, for `replay_episode`: {"seed": ...}, or the state of the simulator; empty if unknown."""

    actions: tuple[Any, ...] | None = None
    """The actions of the episode, up to and with `action`; None if unknown."""

    run_seed: int | None = None
    """Random seed of the run; None if unknown."""

    changes: Mapping[str, Any] | None = None
    """What `call` and `set_attr` had changed in the environment, as plain data; None if nothing."""

    info_columns: Mapping[str, Any] | None = None
    """The columns of infos whose values were wrong or missing, see `InfoColumns.layout`; None for any other error."""

    recipe: Any = None
    """How the environment is made, as plain data; a text that says why this is unknown; None if it cannot be replayed."""

    @property
    def seed(self) -> int | None:
        """Random seed of the episode, the argument of `env.reset`; None if it began in another way, or is unknown."""
        return self.start.get("seed")


class ErrorLocation(NamedTuple):
    """Where an environment was."""

    who: str
    """Which environment, such as "environment 3 (<CartPoleEnv>)"."""

    episode: str
    """Which episode, such as "episode 2, which began with {'seed': 5}"."""

    step: int | None = None
    """Step of the episode, from 0; None in the reset."""

    action: Any = None
    """The action of that step."""

    given: str = "action"
    """Name of `action` in messages: "actions" if there are several."""

    is_replay: bool = False
    """Whether a saved episode was being replayed."""

    together: str = ""
    """For a joint step of several environments, the place of each; then `episode` is ignored."""

    known: EnvLocation | None = None
    """The same for programs; `step` and `action` are filled in."""

    @property
    def words(self) -> str:
        """Its part of a sentence about the environment."""
        if self.step is None:
            return f"for its {self.episode}"
        if self.together:
            return f"in a step of {self.together}, at the {self.given} {shown(self.action, 300)}"
        return f"in step {self.step} of its {self.episode}, at the {self.given} {shown(self.action, 300)}"

    @property
    def sentence(self) -> str:
        """A sentence with the place of wrong data."""
        lead, again = "in the reset " if self.step is None else "", self.again
        return f"It was {lead}{self.words}{again}."

    @property
    def again(self) -> str:
        """The part of a sentence about a replay."""
        return ", while it was replayed" if self.is_replay else ""


def with_location(error: BaseException, place: ErrorLocation) -> BaseException:
    """The error to raise, with its location: the same error, or a RuntimeError if an environment called `sys.exit`.

    The location is added to the message of an EnvDataError, and as a note to other errors. It is also the attribute
    `env_location` of the error. A SystemExit raised by a signal handler is unchanged.
    """
    if not _is_of_a_signal(error):
        error = _with_words(error, place)
        if place.known is not None:
            _attach(error, place.known, place)
    return error


def _attach(error: BaseException, known: EnvLocation, place: ErrorLocation) -> None:
    actions = known.actions
    if actions is not None:  # of a saved episode, not all of them were replayed
        actions = () if place.step is None else actions[: place.step + 1]
    located = dataclasses.replace(known, step=place.step, action=place.action, actions=actions)
    with contextlib.suppress(Exception):  # an exception may refuse attributes
        error.env_location = located  # type: ignore[attr-defined]


def _with_words(error: BaseException, place: ErrorLocation) -> BaseException:
    again = place.again
    if isinstance(error, EnvDataError):
        error.args = (f"{error} {place.sentence}",)
        return error
    who = f"the reset of {place.who}" if place.step is None else place.who
    if isinstance(error, SystemExit):
        return exit_error(error, f"{who}, {place.words}{again}")
    if isinstance(error, Exception):
        add_note(error, f"raised by {who} {place.words}{again}")
    return error


def exit_error(error: SystemExit, who: str) -> RuntimeError:
    """The error to raise if an environment called `sys.exit`, which would end the run without a message."""
    ended = RuntimeError(f"{who}, called sys.exit({shown(error.code, 60)}). {_NO_EXIT}")
    ended.__cause__ = error
    return ended


def _is_of_a_signal(error: BaseException) -> bool:
    """Whether it is a SystemExit that a signal handler raised."""
    if not isinstance(error, SystemExit):
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(handler, "__code__", None) for handler in handlers]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
