"""Saved policies: the policy of a run, ready to act, without the script that trained it."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from ding_lite.basics import CheckpointError, ConfigError, downloaded_run, is_uri, load_checkpoint
from ding_lite.envs import SpaceError
from ding_lite.envs.space_records import space_from
from ding_lite.policy_base import Policy, PolicyConfig
from ding_lite.policy_state import StateDictError, require_identity, settings_in

_REGULAR = re.compile(r"iteration_(?P<number>[0-9]+)\.pt")


def load_policy(
    run: str | PathLike[str],
    which: str | None = None,
    *,
    name: str | None = None,
    policy_class: type[Policy] | None = None,
    device: str = "cpu",
    model: nn.Module | None = None,
) -> Policy:
    """The policy that a `CkptSaver` has saved, made anew with its configuration and spaces, and with the saved weights.

    The file names the policy's class, whose module is imported. A class that was defined in a script, or made by a function
    such as `build_policy`, must be passed as `policy_class`; pass it also for a file from somebody whom you do not trust.

    Args:
        run: the folder of the run, or a checkpoint file; or the URI of a copy of the folder, see docs/reliability.md.
        which: "best", the weights with the best evaluation; "final", those at the end of the run; "latest", the newest of both
            `final` and the regular checkpoints; or the name of a file in the folder `ckpt`, such as "iteration_300". None for
            the one that `default_checkpoint` chooses.
        name: of the policy, if the run has saved several.
        policy_class: the class; None for the one that the file names.
        device: of its networks.
        model: the network of a policy that was made with `model=`, which a file does not hold: a module of the same class and
            sizes. Its weights become the saved ones.

    Raises:
        CheckpointError: there is no such file, or it is damaged.
        StateDictError: a ValueError. The file holds no policy; its class cannot be imported; its network was given to it and is
            not given here; or a part of it cannot be restored.

    Example:
        >>> policy = load_policy("runs/dqn")  # doctest: +SKIP
        >>> action, _ = policy.predict(obs)  # doctest: +SKIP
    """
    if is_uri(run):
        with downloaded_run(os.fspath(run)) as folder:
            return load_policy(folder, which, name=name, policy_class=policy_class, device=device, model=model)
    path = checkpoint_path(run, default_checkpoint(run) if which is None else which)
    state = _chosen(load_checkpoint(path), name, path)
    identity = state.get("made_with")
    if not isinstance(identity, Mapping):
        raise StateDictError(f"{path} holds no policy, only {', '.join(map(repr, state))}: it was saved for another object.")
    try:
        require_identity(identity)
    except StateDictError as error:
        raise StateDictError(f"{path}: {error}") from None
    kind = _class_of(identity, path) if policy_class is None else policy_class
    lineage = kind.lineage()
    if identity["algorithm"] not in lineage and lineage[0] not in identity["derived_from"]:
        raise StateDictError(
            f"{path} holds a policy of the class {identity['algorithm']}, and policy_class is {kind.__name__}."
        )
    given = identity.get("given_model")
    if given is not None and model is None and policy_class is None:
        raise StateDictError(
            f"{path} holds a {identity['algorithm']} that was made with model=, a network of the class {given}: pass such a "
            f"network, load_policy(..., model={given.rpartition(':')[2]}(...)), or a policy_class that makes it."
        )
    config = {**identity["config"], **identity["settings"]}
    lost = [place for place, value in settings_in(config) if isinstance(value, str) and value.startswith("<")]
    if lost:
        raise StateDictError(
            f"{path}: the setting {lost[0]} was an object, which a file does not keep: make the policy as in training, and "
            "call policy.load_state_dict(load_checkpoint(path))."
        )
    try:
        spaces = [space_from(identity[f"{which}_space"]) for which in ("observation", "action")]
    except SpaceError as error:
        raise StateDictError(f"{path}: {error}") from None
    make: Any = kind if model is None else functools.partial(kind, model=model)  # constructors of users may not take it
    config_class = _config_class_of(identity, kind, path, may_import=policy_class is None)
    settings: Any = {**(config if config_class is None else identity["config"]), "device": device}
    try:
        policy: Policy = make(settings if config_class is None else config_class.from_dict(settings), *spaces)
    except (ConfigError, SpaceError) as error:
        raise StateDictError(f"{path} holds a {identity['algorithm']} that cannot be made here: {error}") from error
    policy.load_state_dict(state)
    return policy


def default_checkpoint(run: str | PathLike[str]) -> str:
    """The checkpoint of a run that is used if none is named: "best", with two exceptions.

    In offline runs, it is the one at the end, because the best of many evaluations is so by chance too, and there may be no
    environment to evaluate in. If the best weights are from before the first gradient step, and the run has learned since, they
    are those that it has begun with, so it is the one at the end too, unless weights had been loaded before the run. Of a run
    that has not ended, it is the newest one then. If the file of the end is damaged, a warning says so, and it is "best".

    Returns:
        "best", "final" or "latest".

    Raises:
        CheckpointError: the best checkpoint is damaged, or that of the end, and there is no best one.
    """
    best, final, latest = (checkpoint_path(run, which) for which in ("best", "final", "latest"))
    if best == final or not latest.is_file():  # one file, or no later one
        return "best"
    try:
        end = load_checkpoint(latest)
        counters = counters_in(end, latest)
    except CheckpointError as error:
        if not best.is_file():
            raise
        warnings.warn(f"the best checkpoint is used: {error}", stacklevel=2)
        return "best"
    is_offline = "train_epoch" in counters and "env_step" not in counters
    if is_offline or (best.is_file() and _is_untrained(load_checkpoint(best), end)):
        return "final" if latest == final else "latest"
    return "best"


def _is_untrained(best: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
    """Whether the best weights of a run are from before its first gradient step, and of a policy that had learned in no run."""
    steps = end.get("counters", {}).get("train_iter", 0)
    if not steps or best.get("evaluated_at") != 0:
        return False
    if "is_untrained" in best:
        return best["is_untrained"] is True
    several = end.get("policies")  # a file of an earlier version
    states = [one for one in (end, *(several.values() if isinstance(several, Mapping) else ())) if isinstance(one, Mapping)]
    learned = max(one.get("train_iter", 0) for one in states)
    has_loaded = any(one.get("version", 0) > one.get("train_iter", 0) for one in states)  # set_weights counts as a change too
    return bool(learned <= steps and not has_loaded)


def counters_in(state: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The counters of a checkpoint; empty if it has none.

    Raises:
        CheckpointError: they are no dict, or train_iter is no whole number.
    """
    found = state.get("counters", {})
    if not isinstance(found, Mapping):
        problem = f"{found!r:.60} as counters, expected a dict"
    elif not isinstance(found.get("train_iter", 0), int):
        problem = f"{found['train_iter']!r:.60} as train_iter of its counters, expected a whole number"
    else:
        return found
    raise CheckpointError(f"the checkpoint {path} holds {problem}: name another file of the run, such as iteration_100.")


def checkpoint_path(run: str | PathLike[str], which: str = "best") -> Path:
    """The file of a checkpoint; the arguments are those of `load_policy`. The file may not exist."""
    run = Path(run)
    if run.is_file():
        return run
    folder = run if any(run.glob("*.pt")) else run / "ckpt"
    if which == "latest":
        found = [(int(match["number"]), file) for file in folder.glob("*.pt") if (match := _REGULAR.fullmatch(file.name))]
        final = folder / "final.pt"
        newest = max(found)[1] if found else final
        return final if final.is_file() and final.stat().st_mtime >= newest.stat().st_mtime else newest
    return folder / (which if which.endswith(".pt") else f"{which}.pt")


def saved_names(path: Path) -> tuple[str, ...] | None:
    """The names of the policies in a checkpoint; None if it holds one without a name.

    Raises:
        CheckpointError: there is no such file, or it is damaged.
    """
    several = load_checkpoint(path).get("policies")
    return tuple(several) if isinstance(several, Mapping) else None


def _chosen(state: Mapping[str, Any], name: str | None, path: Path) -> Mapping[str, Any]:
    """The state of one policy."""
    several = state.get("policies")
    if not isinstance(several, Mapping):
        if name is not None:
            raise StateDictError(f"{path} holds one policy without a name, and not {name!r}: leave name out.")
        return state
    names = ", ".join(map(repr, several))
    if name is None and len(several) > 1:
        raise StateDictError(f"{path} holds the policies {names}: choose one, load_policy(..., name={next(iter(several))!r}).")
    if name is not None and name not in several:
        raise StateDictError(f"{path} holds no policy {name!r}, but {names}.")
    name = next(iter(several)) if name is None else name
    chosen = several[name]
    if not isinstance(chosen, Mapping):
        raise StateDictError(f"{path} holds {chosen!r:.60} as the policy {name!r}, expected the dict of its state.")
    return chosen


def _class_of(identity: Mapping[str, Any], path: Path) -> type[Policy]:
    algorithm, place = identity["algorithm"], identity.get("class")
    start = f"{path} holds a policy of the class {algorithm}"
    fix = f"pass it, load_policy(..., policy_class={algorithm})."
    if not isinstance(place, str):
        raise StateDictError(f"{start}, which was made by a function or saved by an earlier version: {fix}")
    try:
        found = _imported(place)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # also for a name that is none
        raise StateDictError(f"{start}, defined {_where(place)}, which cannot be imported here ({error}): {fix}") from None
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise StateDictError(f"{start}, but {place} is no policy: {fix}")
    if found.lineage() != [algorithm, *identity["derived_from"]]:
        raise StateDictError(f"{start} derived from {', '.join(identity['derived_from'])}, but {place} is another one: {fix}")
    return found


def _config_class_of(
    identity: Mapping[str, Any], kind: type[Policy], path: Path, may_import: bool
) -> type[PolicyConfig] | None:
    """The class of the configuration, if it is not the one that the policy makes of a mapping; otherwise None."""
    place = identity.get("config_class")
    if place is None or place.rpartition(":")[2] == kind.config_type.__qualname__:
        return None
    try:
        found = _imported(place, may_import)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        name = place.rpartition(".")[2].rpartition(":")[2]
        raise StateDictError(
            f"{path} holds a policy with a configuration of the class {name}, defined {_where(place)}, which cannot be "
            f"imported here ({error}): set config_type = {name} in a class derived from {kind.__name__}, and pass it as "
            "policy_class."
        ) from None
    if not (isinstance(found, type) and issubclass(found, PolicyConfig)):
        raise StateDictError(f"{path} names {place} as the class of the configuration, which is none.")
    return found


def _imported(place: str, may_import: bool = True) -> Any:
    """The object that module:name names; without imports, only in a module that this program has imported."""
    module, _, qualname = place.partition(":")
    if not may_import and module not in sys.modules:
        raise ImportError(f"with policy_class, {module} is not imported by its name in a file")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def _where(place: str) -> str:
    module = place.partition(":")[0]
    return "in the script that trained it" if module == "__main__" else f"in the module {module}"
