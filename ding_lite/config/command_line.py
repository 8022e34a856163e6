"""The command line: every field of a configuration is an option."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import sys
import typing
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import gymnasium

from ding_lite.basics import (
    Config,
    StorageError,
    did_you_mean,
    is_uri,
    open_storage,
    place_in_storage,
    plain_setting,
    printable,
    require_extra,
    require_usable,
    require_writable,
    restored_run,
    shown_text,
    shown_uri,
    tell,
    without_place,
)
from ding_lite.envs.making import registered_spec

ConfigType = TypeVar("ConfigType", bound=Config)

_WORDS = {"True": True, "False": False, "None": None}
_THEIR_HINT = re.compile(r" Did you mean: [^?]*\?")
"""Gymnasium's hint in a message, whose names have no version."""
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")


def from_command_line(
    config: type[ConfigType] | ConfigType, argv: Sequence[str] | None = None, description: str | None = None
) -> ConfigType:
    """The configuration, changed by options such as `--seed 3 --env.id Acrobot-v1`; `--help` lists them.

    With `--resume FOLDER`, the defaults are those of the run in this folder, so that it can be continued without repeating its
    options; `exp_name` is the folder. A folder that is not on this machine is first downloaded from `--storage-path`, and so is
    the copy at a URI, to the folder that the URI names or to `--exp-name`; see `restored_run`.

    Args:
        config: a configuration class, or an instance whose values are the defaults.
        argv: the arguments without the program's name; None for `sys.argv[1:]`.
        description: text for `--help`, such as the script's `__doc__`.

    Raises:
        SystemExit: `--help`; or a message on standard error about an unknown option, a value of the wrong type, a folder that
            cannot be written to, or an environment that is not registered.
        ConfigError: a value is out of range.
        ImportError: there are arguments, but the extra `cli` is not installed.
    """
    default = config() if isinstance(config, type) else copy.deepcopy(config)
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments:
        return default
    require_extra("tyro", "cli", "the command line")
    import tyro

    resumed = _folder_to_resume(arguments)
    _require_usable("--resume", resumed)
    _require_usable("--storage-path", _or_none(_option(arguments, "--storage-path")))
    if resumed is not None and hasattr(default, "resume"):
        default = _configuration_in(resumed, default, arguments)
    _require_no_foreign(default, arguments)
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_rule_for_dicts)
    parsed = tyro.cli(
        type(default),
        args=arguments,
        default=copy.deepcopy(default),
        description=(description or "").strip(),
        registry=registry,
    )
    if resumed is not None and is_uri(resumed) and hasattr(parsed, "resume"):
        parsed.override({"resume": getattr(default, "resume", None)})
    seed, earlier = getattr(parsed, "seed", None), getattr(default, "seed", None)
    if resumed is not None and seed != earlier:
        _end(
            f"--seed {seed}: the run in {shown_uri(resumed)} has the seed {earlier}, and its random generators go on: leave "
            "the option out, or start a new run with another --exp-name."
        )
    given = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in arguments if word.startswith("--")}
    found = default.override(_changes(default, parsed, given))
    _require_effect(type(default), given)
    _require_possible(found, given)
    return found


def _require_no_foreign(config: Config, arguments: Sequence[str]) -> None:
    """End the program if an option is a name in another library, with what to write instead."""
    for word in arguments:
        option = word.partition("=")[0]
        *places, name = option.removeprefix("--").replace("-", "_").split(".")
        section: Any = config
        for place in places:
            section = getattr(section, place, None)
        if not option.startswith("--") or not isinstance(section, Config) or hasattr(section, name):
            continue
        advice = type(section).about(name)
        if advice is not None:
            _end(f"{option}: {type(section).__name__} has no {name!r}: {advice}")


def _folder_to_resume(arguments: Sequence[str]) -> str | None:
    """The value of --resume; None if it is not given. Ends the program if another option stands in its place."""
    found = _option(arguments, "--resume")
    if found is not None and found.startswith("--"):
        _end(f"--resume is followed by the option {found}: it wants the folder of a run, such as --resume runs/dqn.")
    return _or_none(found)


def _option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option of one word; None if it is not given. The last one counts, as in tyro."""
    found = None
    for word, following in zip(arguments, [*arguments[1:], None]):
        option, is_given, value = word.partition("=")
        if option.replace("_", "-") == name:
            found = value if is_given else following
    return found


def _or_none(value: str | None) -> str | None:
    """The value of an option whose value may be None."""
    return None if value == "None" else value


def _require_usable(option: str, value: str | None) -> None:
    """End the program if a URI has secrets or is written wrongly, before it is written or shown anywhere."""
    if value is not None and (option == "--storage-path" or is_uri(value)):
        try:
            require_usable(value)
        except StorageError as error:
            _end(f"{option} {shown_uri(value)}: {error}")


def _configuration_in(run: str, default: ConfigType, arguments: Sequence[str]) -> ConfigType:
    """The configuration of the run in this folder, to continue it there. Ends the program if there is none that fits.

    The folder is downloaded first if it is the URI of a copy, or is missing and there is a storage.
    """
    storage_path = _option(arguments, "--storage-path")
    if storage_path is None:
        storage_path = getattr(default, "storage_path", None)
    try:
        folder = str(restored_run(run, _or_none(storage_path), folder=_option(arguments, "--exp-name")))
    except (OSError, ValueError, ImportError) as error:
        _end(f"--resume {shown_uri(run)}: {error}")
    above = without_place(run, place_in_storage(folder)) if is_uri(run) else None
    stored = {} if above is None else {"storage_path": above}
    path = Path(folder) / "config.json"
    try:
        read = json.loads(path.read_bytes())
        if not isinstance(read, dict):
            raise ValueError(f"expected an object, got a {type(read).__name__}")
        saved = {name: value for name, value in read.items() if name != "run"}
        found: ConfigType = copy.deepcopy(default).override({**saved, "exp_name": folder, "resume": folder, **stored})
    except (OSError, TypeError, ValueError, RecursionError) as error:
        _end(f"--resume {shown_uri(run)}: the configuration of the run, {path}, cannot be read ({error}).")
    return found


def _require_effect(config: type[Config], given: Collection[str]) -> None:
    """End the program if an option has no effect."""
    for name, advice in config.unused_settings.items():
        found = next((option for option in given if option == name or option.startswith(f"{name}.")), None)
        if found is not None:
            _end(f"--{found.replace('_', '-')} has no effect: {advice}")


def _require_possible(config: Any, given: Collection[str]) -> None:
    """End the program with status 2 if the folder or the environment given on the command line cannot be used."""
    try:
        if "exp_name" in given:
            require_writable(Path(config.exp_name) / "config.json")
        if "storage_path" in given and config.storage_path is not None:
            open_storage(config.storage_path).at(place_in_storage(config.exp_name)).require_writable()
        if "env.id" in given:
            registered_spec(config.env.id)
    except StorageError as error:
        _end(f"--storage-path {shown_uri(config.storage_path)}: {error}")
    except OSError as error:
        _end(f"--exp-name {config.exp_name}: {error}")
    except ImportError as error:
        if "storage_path" in given and "storage_path" in str(error):
            _end(f"--storage-path {shown_uri(config.storage_path)}: {error}")
        module = " The part before the colon is the module that registers the environment." if ":" in config.env.id else ""
        _end(f"--env.id {config.env.id}: {str(error).rstrip('.')}.{module}")
    except Exception as error:
        if not type(error).__module__.startswith("gymnasium."):
            raise
        known = did_you_mean(config.env.id, gymnasium.registry)
        problem = str(error) if known == "." else _THEIR_HINT.sub("", str(error))
        fix = "Register your own environments before from_command_line()."
        _end(f"--env.id {config.env.id}: {problem.rstrip('.?')}{known} {fix}")


def _end(message: str) -> NoReturn:
    tell(f"{Path(sys.argv[0]).name}: {printable(shown_text(message))}")
    raise SystemExit(2)


def _changes(before: Config, after: Config, given: Collection[str], prefix: str = "") -> dict[str, Any]:
    """The values that differ from the defaults or were given, as nested dicts. A section that has no default is whole.

    They are in the order of the fields: setting an environment's id sets its stop_value, so the id must come first.
    """
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(after):
        name = field.name
        value, default = getattr(after, name), getattr(before, name)
        if isinstance(value, Config) and type(value) is type(default):
            inner = _changes(default, value, given, f"{prefix}{name}.")
            if inner:
                changes[name] = inner
        elif value != default or f"{prefix}{name}" in given:
            changes[name] = value
    return changes


def _rule_for_dicts(info: Any) -> Any:
    """tyro's rule for an option with a dict of values of any type; None for options of other types."""
    if typing.get_origin(info.type) is not dict:
        return None
    from tyro.constructors import PrimitiveConstructorSpec

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=named_values,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda values: [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in plain_setting(values).items()
        ],
    )


def named_values(words: Sequence[str]) -> dict[str, Any]:
    """The values of an option with a dict: words `NAME=VALUE`, or one word with a JSON object.

    A VALUE is a number, True, False, None, JSON such as `[1, 2]` or `"8"`, or otherwise a string.

    Raises:
        ValueError: a word is neither of these, or a name is given twice.

    Example:
        >>> named_values(["is_slippery=False", "map_name=8x8", "gravity=-9.5", "size=[3, 4]"])
        {'is_slippery': False, 'map_name': '8x8', 'gravity': -9.5, 'size': [3, 4]}
        >>> named_values(['{"is_slippery": false}'])
        {'is_slippery': False}
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return dict(json.loads(words[0]))
        except ValueError as error:
            raise ValueError(f"{words[0]!r} is not valid JSON: {error}.") from None
    values: dict[str, Any] = {}
    for word in words:
        name, is_given, value = word.partition("=")
        if not (name and is_given) or name in values:
            problem = "is given twice" if name in values else "has no name or no value"
            raise ValueError(f"{word!r} {problem}: write NAME=VALUE ..., such as is_slippery=False map_name=8x8.")
        values[name] = _value_of(value)
    return values


def _value_of(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _FLOAT.fullmatch(text):  # also forms such as .5, which JSON does not have
        return float(text)
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
