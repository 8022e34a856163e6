"""Exports: a policy's greedy actions as a torch module, a `torch.export` program, or an ONNX file."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.basics import require_extra, temporary_beside, unflatten, writing
from ding_lite.basics.blocks import block
from ding_lite.basics.signatures import parameters_of
from ding_lite.data import flatten
from ding_lite.data.trees import map_leaves
from ding_lite.envs.action_masks import ACTION_MASK, ActionMasks
from ding_lite.envs.arrays import to_tensors
from ding_lite.envs.spaces import subspaces, to_nested
from ding_lite.policy_base import EvalMode, Policy

_SAMPLES = 32


class ExportError(ValueError):
    """A policy that cannot be exported, or whose export acts differently."""


class GreedyActionModule(nn.Module):
    """The greedy actions of a policy, as a torch module for `torch.export`, with a copy of its weights on the CPU.

    The preprocessing of observations is a part of it: scaling of bytes, one-hot vectors, and normalisation.

    Args:
        policy: the policy; later changes to its weights do not reach the copy.

    Example:
        >>> from ding_lite.policy import DQNPolicy
        >>> space = spaces.Box(-1.0, 1.0, (4,))
        >>> GreedyActionModule(DQNPolicy(None, space, spaces.Discrete(2)))(torch.zeros(3, 4)).shape
        torch.Size([3])
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._actor = policy.actor("predict", 0, torch.device("cpu"))
        self._actor.copy_weights(policy)
        self.model = self._actor.model
        self._clip = _clamp(policy.action_space)
        self.previous = _needed(policy)
        """The names of further inputs: those of prev_action_batch and prev_reward_batch that the policy needs."""

    def initial_state(self, batch_size: int) -> tuple[Tensor, ...]:
        """The recurrent state of `batch_size` episodes at their start; empty if the policy has none."""
        parts = [torch.as_tensor(part) for part in self._actor.get_initial_state()]
        return tuple(part.repeat(batch_size, *[1] * part.ndim) for part in parts)

    def forward(self, obs: Any, state: Sequence[Tensor] = (), previous: Mapping[str, Any] | None = None) -> Any:
        """Compute actions.

        Args:
            obs: [B, *obs_shape] tensors with the dtypes of the space, as dicts nested like it; the parts of a Tuple space have
                the names "0", "1" and so on.
            state: the recurrent state, from `initial_state` or from the previous call.
            previous: for a policy that reads them, see `previous`, the last action and reward by these names, [B, ...], zeros
                at the start of an episode.

        Returns:
            action [B, *action_shape], nested in the same way, clipped to its bounds; with a recurrent state, the action and the
            next state.
        """
        action, state, _ = self._actor.compute_actions(obs, list(state), explore=False, **(previous or {}))
        action = self._clip(map_leaves(torch.as_tensor, action))
        return (action, tuple(state)) if state else action


def export_policy(policy: Policy, path: str | PathLike[str]) -> Path:
    """Write a policy's greedy actions to a file that runs without ding_lite, and check it.

    The file is a `GreedyActionModule` for any batch size. The inputs of an ONNX file are called obs (or obs.KEY for each part
    of a nested space), state_0, state_1 and so on, and prev_action_batch and prev_reward_batch if the policy reads them; the
    outputs action (or action.KEY) and next_state_0 and so on. Before `export_policy` returns, the file is loaded again and must
    give the same actions on random observations.

    Args:
        policy: the policy.
        path: the file: `.pt2` for `torch.export.load`, `.onnx` for ONNX.

    Raises:
        ValueError: another ending.
        ExportError: a ValueError. The policy acts by operations that cannot be exported, such as numpy's in `compute_actions`;
            or the file acts differently.
        ImportError: ONNX without the extra `export`.
        WriteError: the file cannot be written.

    Example:
        >>> export_policy(load_policy("runs/dqn"), "dqn.onnx")  # doctest: +SKIP
    """
    if not isinstance(policy, Policy):
        raise TypeError(
            f"export_policy(policy, path) wants the policy itself, got {policy!r:.60} of type {type(policy).__name__}: "
            'of a run, it is load_policy("runs/dqn").'
        )
    path = Path(path)
    is_onnx = path.suffix == ".onnx"
    if path.suffix not in (".pt2", ".onnx"):
        raise ValueError(f"export_policy(path={str(path)!r}): the file ends in .pt2 for torch.export, or in .onnx.")
    for module in ("onnx", "onnxscript", "onnxruntime") if is_onnx else ():
        require_extra(module, "export", "an ONNX file")
    greedy, inputs = GreedyActionModule(policy).eval(), _inputs(policy)
    args = _arguments(greedy, inputs, 2)
    program = _program(greedy, args)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(path)
        unfinished = temporary.with_name(f"{temporary.name}{path.suffix}")  # torch wants the ending
        try:
            if is_onnx:
                _write_onnx(program, args, unfinished)
            else:
                torch.export.save(program, unfinished)
            _check(policy, greedy, inputs, unfinished)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def _program(greedy: GreedyActionModule, args: tuple[Any, ...]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    shapes = tuple(torch.utils._pytree.tree_map(lambda leaf: {0: batch}, arg) for arg in args)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # networks of actor and critic remember their last output
            return torch.export.export(greedy, args, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
        raise ExportError(
            f"{type(greedy._actor).__name__} cannot be exported, because torch.export cannot follow its compute_actions: use "
            f"operations of torch alone there. ({reason})"
        ) from error


def _write_onnx(program: torch.export.ExportedProgram, args: tuple[Any, ...], path: Path) -> None:
    with torch.no_grad():
        action, state = _parts(program.module()(*args), args)
    outputs = [*_names("action", action), *(f"next_state_{place}" for place in range(len(state)))]
    with _silent("torch.onnx"):  # it says that torchvision is not installed
        torch.onnx.export(
            program,
            (),
            str(path),
            dynamo=True,
            input_names=list(_named(*args)),
            output_names=outputs,
            external_data=False,
            verbose=False,
        )


@block
def _silent(name: str) -> Iterator[None]:
    """No warnings, and no messages of this logger below errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _parts(found: Any, args: tuple[Any, ...]) -> tuple[Any, Sequence[Any]]:
    """The action and the next state in the result of a `GreedyActionModule` for these arguments."""
    return found if len(args) > 1 and args[1] else (found, ())


def _names(name: str, structure: Any) -> dict[str, tuple[Any, ...]]:
    """The names of the leaves in an ONNX file, in their order, and their paths.

    Raises:
        ExportError: two have the same one.
    """
    made = dict[str, tuple[Any, ...]]()
    for path, _ in flatten(structure):
        one = ".".join((name, *map(str, path)))
        if one in made:
            raise ExportError(f"two parts of {name} have the name {one} in an ONNX file: rename one, or export to .pt2.")
        made[one] = path
    return made


def _named(obs: Any, state: Sequence[Tensor] = (), previous: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """The inputs of an ONNX file by name, in their order."""
    parts = {"obs": obs, **{f"state_{place}": part for place, part in enumerate(state)}, **(previous or {})}
    names = [name for key, part in parts.items() for name in _names(key, part)]
    return dict(zip(names, (leaf for part in parts.values() for _, leaf in flatten(part))))


def _check(policy: Policy, greedy: GreedyActionModule, inputs: Mapping[str, Any], path: Path) -> None:
    """Raise ExportError if the file at `path` gives other actions than the policy, in the first step or the second."""
    is_onnx = path.suffix == ".onnx"
    run = _onnx_runner(path, _samples(policy.action_space)) if is_onnx else torch.export.load(path).module()
    mode = EvalMode(policy)  # a new one, so that those of the policy stay as they are
    for count in (1, _SAMPLES):
        args = _arguments(greedy, inputs, count)
        known: Sequence[Any] = args[1] if len(args) > 1 else ()
        previous = map_leaves(np.asarray, dict(args[2])) if len(args) > 2 else {}
        for _ in range(2 if known else 1):
            acted, known, _ = mode.forward(args[0], list(known), **previous)
            with torch.no_grad():
                found, state = _parts(run(*args), args)
            _require_same(policy, mode.env_action(acted), dict(flatten(found)))
            if known:
                args = (args[0], tuple(torch.as_tensor(part) for part in state), *args[2:])


def _require_same(policy: Policy, wanted: Any, action: Mapping[Any, Any]) -> None:
    for place, leaf in flatten(wanted):
        other = np.asarray(action[place])
        if not np.allclose(leaf, other, rtol=1e-4, atol=1e-5):  # other runtimes add numbers in another order
            raise ExportError(
                f"the exported {type(policy).__name__} acts differently: {'.'.join(('action', *map(str, place)))} is "
                f"{other.tolist()!s:.60} instead of {leaf.tolist()!s:.60}. compute_actions must depend on its "
                "arguments and on the weights alone."
            )


def _onnx_runner(path: Path, actions: Any) -> Callable[..., Any]:
    """The function in an ONNX file, for actions nested like these."""
    import onnxruntime

    places = _names("action", actions)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = ([one.name for one in part] for part in (session.get_inputs(), session.get_outputs()))

    def run(*args: Any) -> Any:
        given = _named(*args)
        found = session.run(None, {name: given[name].numpy() for name in inputs})
        values = dict(zip(outputs, found))
        action = unflatten({place: values[name] for name, place in places.items()})
        count = len(args[1]) if len(args) > 1 else 0
        return (action, found[len(found) - count :]) if count else action

    return run


def _inputs(policy: Policy) -> dict[str, Any]:
    """Random observations, and last actions and rewards if the policy reads them, as tensors [_SAMPLES, ...]."""
    previous = {
        "prev_action_batch": _samples(policy.action_space),
        "prev_reward_batch": torch.randn(_SAMPLES, generator=torch.Generator().manual_seed(0)),
    }
    obs = _with_choice(_samples(policy.observation_space), policy.predict_mode.masks)
    return {"obs": obs, **{name: previous[name] for name in _needed(policy)}}


def _needed(policy: Policy) -> tuple[str, ...]:
    """The values of the last step that the policy reads. One with a default other than None keeps it."""
    parameters = parameters_of(policy.compute_actions)
    return tuple(name for name in policy.previous if parameters[name].default in (None, inspect.Parameter.empty))


def _samples(space: gymnasium.Space[Any]) -> Any:
    """Random observations as tensors [_SAMPLES, ...], nested like the space."""
    space = copy.deepcopy(space)
    space.seed(0)
    rows = [to_nested(space, space.sample()) for _ in range(_SAMPLES)]
    stacked = map_leaves(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)
    return to_tensors(stacked, torch.device("cpu"))


def _with_choice(obs: Any, masks: ActionMasks | None) -> Any:
    """The observations with masks, if they have any, that allow the first value of each choice."""
    if masks is not None:
        obs[ACTION_MASK][:, masks.first_columns] = 1
    return obs


def _arguments(greedy: GreedyActionModule, inputs: Mapping[str, Any], count: int) -> tuple[Any, ...]:
    """The arguments of a `GreedyActionModule` at the start of `count` episodes."""
    rows, state = map_leaves(lambda leaf: leaf[:count], dict(inputs)), greedy.initial_state(count)
    if greedy.previous:
        return rows["obs"], state, {name: rows[name] for name in greedy.previous}
    return (rows["obs"], state) if state else (rows["obs"],)


def _clamp(space: gymnasium.Space[Any]) -> Callable[[Any], Any]:
    """A function that clips the Box parts of nested actions to their bounds, by operations of torch."""
    parts = subspaces(space)
    if parts is not None:
        inner = {name: _clamp(part) for name, part in parts.items()}
        return lambda action: {name: clip(action[name]) for name, clip in inner.items()}
    if isinstance(space, spaces.Box):
        low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
        return lambda action: action.clamp(low, high)
    return lambda action: action


GreedyPolicy = GreedyActionModule  # its name in earlier versions
