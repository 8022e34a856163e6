"""Ray Tune: pipelines as trainables, which its schedulers, searchers and clusters can run."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.basics import Config, ConfigError, RunFiles, did_you_mean, require_extra
from ding_lite.distributed.members import Member, PipelineBuilder
from ding_lite.policy_base import FixedSettingError
from ding_lite.run_configs import RunConfig


def as_trainable(
    pipeline: PipelineBuilder, config: RunConfig | type[RunConfig], iterations: int = 10, name: str | None = None
) -> type[Any]:
    """A subclass of `ray.tune.Trainable`, for a Tuner. Each trial is a `Member`, a run in slices.

    The search space names settings by their dotted names, `{"policy.learn.learning_rate": tune.loguniform(1e-5, 1e-2)}`, or as
    nested dicts. A step of a trial is a slice; its result has the metrics of the rows of a logger, such as
    `evaluate/episode_return_mean`, and `eval_value`, `env_step` and `train_iter`. It is done when a middleware ends the run. A
    checkpoint holds the state of the whole run, in the files that CkptSaver writes.

    With `TuneConfig(reuse_actors=True)`, the next trial runs in the same process. If it differs only in settings that can be
    changed in a run, and the pipeline writes no files, it keeps the environments, and begins from the state that the member had
    at first, as a new one does. Otherwise the pipeline is made anew.

    A checkpoint of another trial, as in PBT, brings its weights, data and counters. The settings are those of the trial that
    loads it.

    Args:
        pipeline: adds the middleware of a run, and returns its policy; see `Member`.
        config: the configuration, or its class, over which the values of the search space are applied.
        iterations: iterations of a slice.
        name: name of the class in Tune's tables; None for that of the pipeline.

    Raises:
        ImportError: the extra `ray` is not installed.
        ValueError: `iterations` < 1.
        TypeError: `config` is no configuration of a run.

    Example:
        >>> trainable = as_trainable(pipeline, DQNConfig, iterations=20)  # doctest: +SKIP
        >>> tune.Tuner(trainable, param_space={"policy.learn.batch_size": tune.choice([32, 64])})  # doctest: +SKIP
    """
    require_extra("ray", "ray", "as_trainable")
    from ray.tune import Trainable

    if iterations < 1:
        raise ValueError(f"as_trainable(iterations={iterations}): a slice has at least one iteration.")
    default = copy.deepcopy(config() if isinstance(config, type) else config)
    if not isinstance(default, RunConfig):
        raise TypeError(f"as_trainable wants a RunConfig or a class of one, got {config!r:.80}: pass PPOConfig, for example.")

    class PipelineTrainable(Trainable):
        """A trial of Tune that runs a member."""

        def setup(self, config: dict[str, Any]) -> None:
            """Make the member with the values of the search space."""
            self.trial = Trial(pipeline, default, config, str(self.logdir))

        def step(self) -> dict[str, Any]:
            """Run a slice. Returns its metrics."""
            results = self.trial.member.advance(iterations)
            return {**results, "done": results.pop("is_finished")}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            """Save the state of the run."""
            self.trial.save(Path(checkpoint_dir))

        def load_checkpoint(self, checkpoint: Any) -> None:
            """Load the state of a run; the settings stay."""
            self.trial.load(Path(checkpoint))

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            """Become another trial."""
            self.trial.reset(new_config, str(self.logdir))
            return True

        def cleanup(self) -> None:
            """Free environments and processes."""
            if hasattr(self, "trial"):
                self.trial.member.close()

    title = str(name or getattr(pipeline, "__name__", "pipeline"))
    PipelineTrainable.__name__ = PipelineTrainable.__qualname__ = title
    return PipelineTrainable


class Trial:
    """What a trainable of Tune does; it does not need Ray.

    Args:
        pipeline: the pipeline of the member.
        default: the configuration, over which values are applied.
        values: the values of the search space.
        folder: folder of the trial. The run's is a subfolder.

    Raises:
        ConfigError: a name does not exist, or a value is out of range or of the wrong type.
    """

    def __init__(self, pipeline: PipelineBuilder, default: RunConfig, values: Mapping[str, Any], folder: str) -> None:
        self._pipeline, self._default = pipeline, default
        self._begin(values, folder)

    def _begin(self, values: Mapping[str, Any], folder: str) -> None:
        self._folder = folder
        self.member = Member(self._pipeline, self._configured(values))
        self._first = self.member.state_dict()

    def _configured(self, values: Mapping[str, Any]) -> RunConfig:
        """The configuration with the values of a search space."""
        cfg = copy.deepcopy(self._default)
        known = cfg.to_dict()
        unknown = [name for name in values if not isinstance(name, str) or name.partition(".")[0] not in known]
        if unknown:
            raise ConfigError(
                f"the search space has {unknown[0]!r}, and {type(cfg).__name__} has no such setting"
                f"{did_you_mean(str(unknown[0]), known)} Settings have dotted names, such as policy.learn.learning_rate."
            )
        cfg.exp_name, cfg.storage_path = str(Path(self._folder) / "run"), None  # Tune stores checkpoints itself
        return cfg.override(values)

    def save(self, folder: Path) -> None:
        """Save the state of the run."""
        state = self.member.state_dict()
        RunFiles(folder).save(state["run"], state["run"]["done"])
        (folder / "member.json").write_text(json.dumps({"is_finished": state["is_finished"]}), encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Load a saved state of a run with the same pipeline. The settings stay, because they are those of this trial."""
        run, _ = RunFiles(folder).load()
        facts = json.loads((folder / "member.json").read_text(encoding="utf-8"))
        self.member.load_state_dict({"run": run, **facts}, keep_settings=True)

    def reset(self, values: Mapping[str, Any], folder: str) -> None:
        """Begin a trial with other values, as a new one does.

        Args:
            values: the values of the search space.
            folder: folder of the trial.
        """
        wanted, now = _settings(self._configured(values)), _settings(self.member.cfg)
        changes = {name: value for name, value in wanted.items() if now[name] != value and name != "exp_name"}
        writes_files = any(hasattr(fn, "note_error") for fn in self.member.task.middleware)
        try:
            if not writes_files:
                self.member.require_live(changes)
                self.member.load_state_dict(self._first, keep_settings=True)
                self.member.reset_config(changes)
                return
        except FixedSettingError:
            pass
        self.member.close()
        self._begin(values, folder)


def _settings(config: Config, prefix: str = "") -> dict[str, Any]:
    """All settings by dotted name. A dict that is the value of one, such as env.env_config, stays whole."""
    found: dict[str, Any] = {}
    values = config.to_dict()
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        found |= _settings(value, f"{name}.") if isinstance(value, Config) else {name: values[field.name]}
    return found
