"""Error reproduction: the episode up to an error of an environment as a file, and replaying it until the error is raised."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.basics import CheckpointError, add_note, arrays, load_checkpoint, save_checkpoint
from ding_lite.basics.run_records import ENV_ERROR
from ding_lite.data.trees import map_leaves
from ding_lite.envs.changes import EnvChanges
from ding_lite.envs.error_locations import EnvLocation
from ding_lite.envs.local_vectors import LocalVectorEnv
from ding_lite.envs.recipes import made_from, recipe_of

_KEYS = {"name", "env", "run_seed", "episode", "start", "actions", "steps", "recipe", "search_path"}


class NotReproducibleError(ValueError):
    """The error of a file of `save_env_error` cannot be reproduced here."""


def save_env_error(error: BaseException, folder: str | os.PathLike[str] = ".") -> Path | None:
    """Write the episode up to an error of an environment to `folder`/env_error.pt, and note on the error how to reproduce it.

    The file is plain data: how the environment is made, the seed of the episode, and its actions. A failure to write is a
    warning.

    Args:
        error: the error.
        folder: the folder, such as that of the run.

    Returns:
        The path; None if the error is not of an environment of `make_envs`, or the file cannot be written.
    """
    where = getattr(error, "env_location", None)
    if not isinstance(where, EnvLocation) or where.recipe is None or where.actions is None:
        return None
    path = Path(folder) / ENV_ERROR
    try:
        save_checkpoint(_contents(where), path)
    except Exception as problem:  # noqa: BLE001  actions may be any objects, and must not hide the error
        warnings.warn(f"the episode up to the error is not saved to {path}: {problem}", stacklevel=2)
        return None
    if isinstance(where.recipe, str):
        call = f"from ding_lite.envs import reproduce_env_error; reproduce_env_error({str(path)!r}, make_env)"
        add_note(error, f"To replay the episode up to this error in your script, because {where.recipe}: {call}")
    else:
        add_note(error, f"To replay the episode up to this error: python -m ding_lite replay {shlex.quote(str(path))}")
    return path


def reproduce_env_error(path: str | os.PathLike[str], make_env: Callable[[], Any] | None = None) -> EnvLocation:
    """Replay the episode of a file of `save_env_error`, with the same checks: the same error is raised again.

    The modules that the file names are imported, so that it may execute any code: replay only files that you trust.

    Args:
        path: the file.
        make_env: a function that returns a new environment; None for the one that the file names.

    Returns:
        Where the error was, if it was not raised again.

    Raises:
        CheckpointError: not a file of `save_env_error`.
        NotReproducibleError: the file does not name an environment that can be imported here: pass `make_env`.
        Exception: the error of the environment.
    """
    saved = arrays(load_checkpoint(path))
    if not saved.keys() >= _KEYS:
        raise CheckpointError(f"{path} is not an episode of save_env_error(), such as {ENV_ERROR} in the folder of a run.")
    recipe = saved["recipe"]
    if make_env is None:
        if isinstance(recipe, str):
            raise NotReproducibleError(
                f"the error of {path} cannot be reproduced without the script that wrote it, because {recipe}: call "
                f"reproduce_env_error({str(path)!r}, make_env) there, with a function that returns a new environment."
            )
        sys.path += [folder for folder in saved["search_path"] if folder not in sys.path]
        try:
            make_env = made_from(recipe)
        except (ImportError, AttributeError) as error:
            raise NotReproducibleError(f"the environment of {path} cannot be made here: {error}. Pass make_env.") from error
    index, number, steps = saved["env"], saved["episode"], saved["steps"]
    envs = LocalVectorEnv([make_env], saved["run_seed"], index)
    changes = EnvChanges.of(saved.get("changes"))  # files of earlier versions have none
    try:
        envs.starts[0].load_changes({"before": changes.before, "during": []})
        envs.starts[0].repeat(number, saved["start"])
        envs.begin(envs.new_obs())
        for step, action in enumerate(_rows(saved["actions"], steps)):
            for taken, change in changes.during:
                if taken == step:
                    envs.apply_changes([change])
            envs.advance(action, envs.new_obs())
        if layout := saved.get("info_columns"):  # the error was in the infos of the last step
            envs.expect_columns(layout)
            envs.step_info()
    finally:
        envs.close()
    last = steps - 1 if steps else None
    return EnvLocation(index, saved["name"], number, last, start=saved["start"], recipe=recipe_of(make_env))


def _contents(where: EnvLocation) -> dict[str, Any]:
    actions = where.actions or ()
    return {
        "name": where.name,
        "env": where.env,
        "run_seed": where.run_seed,
        "episode": where.episode,
        "start": dict(where.start),
        "actions": _stacked(actions) if actions else None,
        "steps": len(actions),
        "recipe": where.recipe,
        "changes": where.changes,
        "info_columns": where.info_columns,
        "search_path": [os.path.abspath(folder) for folder in sys.path[:1]],  # of the script, for its own modules
    }


def _stacked(actions: Sequence[Any]) -> Any:
    """Actions as arrays with a row for each step, nested for Dict and Tuple spaces."""
    first = actions[0]
    if isinstance(first, Mapping):
        return {name: _stacked([action[name] for action in actions]) for name in first}
    if isinstance(first, tuple):
        return {str(place): _stacked(column) for place, column in enumerate(zip(*actions))}
    return np.stack([np.asarray(action) for action in actions])


def _rows(actions: Any, steps: int) -> Iterator[Any]:
    """The actions of each step, as for one environment."""
    for step in range(steps):
        yield map_leaves(lambda leaf, at=step: leaf[at : at + 1], actions)


ReplayError = NotReproducibleError  # its name in earlier versions
replay_error = reproduce_env_error  # its name in earlier versions
