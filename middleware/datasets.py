"""Datasets: record what is collected, and learn from what was recorded."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import gymnasium
import numpy as np
import torch

from ding_lite.basics import base_state, command_line, foreign_arguments, library_versions
from ding_lite.basics.optional_attributes import has_attribute
from ding_lite.config import RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Episodes, Trajectories, Tree, flatten, nested
from ding_lite.data.trees import has_leaf, map_leaves, with_leaves
from ding_lite.datasets import DatasetError, DatasetWriter, EpochSampler, OfflineDataset, open_dataset
from ding_lite.datasets.space_checks import require_spaces
from ding_lite.datasets.writers import STATE_KEYS
from ding_lite.engine import Task, contract
from ding_lite.envs import SpaceError
from ding_lite.envs.arrays import clipper
from ding_lite.envs.space_records import space_from
from ding_lite.envs.spaces import subspaces
from ding_lite.middleware.arguments import require_mode, require_settings, warn_of_other_settings
from ding_lite.middleware.collected import COLLECTED_TERMS, collected_data
from ding_lite.middleware.fetchers import columns_read
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.middleware.own_runs import own_run
from ding_lite.middleware.run_descriptions import describe_run
from ding_lite.policy import CollectMode, LearnMode
from ding_lite.policy_state import settings_in
from ding_lite.ranks import current_ranks

_ROWS_LOOKED_AT = 100_000  # of the actions and observations of a dataset, before the run
_PIECE = 1 << 20  # numbers of observations that are looked at together
_OF_COLLECTION = ("learn.update_per_collect", "learn.learning_starts", "random_collect_size")
_SECTIONS_OF_COLLECTION = ("collect.n_", "other.")
_ROUNDING = 1e-3  # of the range of a Box
_FEW = 0.1  # of the steps of a dataset, in unfinished episodes: a run that records ends in the middle of some


@foreign_arguments(ARGUMENTS["offline_data_saver"])
def offline_data_saver(cfg: RunConfig, path: str | PathLike[str], append: bool = False) -> OfflineDataSaver:
    """Record everything that is collected as a dataset, for `OfflineDataset(path)`.

    The dataset has all columns of the rollouts, such as log_prob and further outputs of the policy. Its index says the spaces,
    the environments, the policy, the seed and the versions. It has whole episodes: the steps of one that goes on in the next
    rollout are held until it ends, those of all environments until there are 8 MB. At the end of the run, also by an error, the
    rest is written, unfinished episodes too; if the run goes on, its further steps replace them by whole ones. Where an
    environment is in the middle of an episode when the recording begins, the rest of this episode is left out, with a warning.

    Put it before middleware that changes rewards or observations, such as nstep_reward_enhancer. Where a reward_estimator or
    reward_normalizer has changed rewards before it, the dataset has those of the environment, which they keep as raw_reward. So
    can a middleware of your own.

    With `append`, it warns if the dataset has a recording with the same seed, environments and weights of the policy already:
    the new one would be a copy of it.

    Reads:
        ctx.trajectories, or ctx.episodes if whole episodes were collected.

    Args:
        cfg: uses exp_name and seed, which are recorded.
        path: folder of the dataset.
        append: whether to add to a dataset that exists. A run that is resumed goes on with its dataset.

    Raises:
        WriteError: nothing can be written there.
        DatasetError: before the first iteration, there is a dataset already, or, with `append`, its spaces differ; in an
            iteration, the columns differ from those of the dataset, or hold objects.
        FolderInUseError: before the first iteration, another process writes to the dataset.
    """
    return OfflineDataSaver(cfg, path, append)


class OfflineDataSaver:
    """The middleware that `offline_data_saver` returns."""

    def __init__(self, cfg: RunConfig, path: str | PathLike[str], append: bool) -> None:
        self.__name__ = "offline_data_saver"
        require_settings("offline_data_saver", cfg, "exp_name", "seed", such_as="DQNConfig")
        if not isinstance(path, (str, PathLike)):
            raise TypeError(
                f"offline_data_saver(cfg, path) wants the folder of the dataset, got {path!r:.60} of type "
                f"{type(path).__name__}."
            )
        self._cfg, self._writer = cfg, DatasetWriter(path, append)
        contract(**COLLECTED_TERMS, uses=(self,), stage="process")(self)

    def begin_run(self) -> None:
        """Open the dataset. The task calls it."""
        task = own_run()
        envs = [thing for stage, thing in task.used_objects() if stage == "collect" and has_attribute(thing, "num_envs")]
        spaces = [getattr(envs[0], f"single_{name}_space", None) if envs else None for name in ("observation", "action")]
        run = describe_run(task)
        source = {
            "run": str(self._cfg.exp_name),
            "seed": self._cfg.seed,
            "environments": [known for known in run["environments"] if known["stage"] == "collect"],
            "policies": run["policies"],
            "weights": _weights_digest(task),
            "environment_seeds": [getattr(one, "run_seed", None) for one in envs],
            "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": command_line(),
            "versions": library_versions(),
        }
        self._writer.begin(spaces[0], spaces[1], source)

    def __call__(self, ctx: OnlineRLContext) -> None:
        found = collected_data(ctx, "offline_data_saver", wants="whole")
        if len(found):
            self._writer.add(_with_rewards_of_environment(found))

    def end_run(self, ctx: OnlineRLContext) -> None:
        """Write what is held, and let others write to the dataset."""
        self._writer.flush()
        self._writer.close()

    def note_error(self, error: Exception) -> None:
        """Write what is held before the run ends by an error. The task calls it."""
        try:
            if not isinstance(error, DatasetError):
                self._writer.flush()
            elif self._writer.is_open:
                with contextlib.suppress(DatasetError):  # if what is held is the cause, the run names it already
                    self._writer.flush()
        finally:
            self._writer.close()

    def state_dict(self) -> dict[str, Any]:
        """The files so far, and the steps that are in none."""
        return self._writer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved run: what was written after it was saved is dropped."""
        self._writer.load_state_dict(base_state(self, state, STATE_KEYS))


def _with_rewards_of_environment(found: Trajectories | Episodes) -> Trajectories | Episodes:
    """The collected data with the environment's rewards, where a middleware has changed them and kept those as raw_reward."""
    before = found.rows() if isinstance(found, Episodes) else found.columns
    if "raw_reward" not in before:
        return found
    columns = {name: column for name, column in before.items() if name != "raw_reward"}
    columns["reward"] = np.asarray(before["raw_reward"])
    if isinstance(found, Episodes):
        return Episodes(columns, found.lengths)
    made = Trajectories(columns, found.valid)
    made.order, made.begins, made.limits = found.order, found.begins, found.limits
    return made


def _weights_digest(task: Task) -> str:
    """A checksum of the weights that the policies act with; of a policy of another library nothing is known."""
    digest, seen = hashlib.sha256(), set[int]()
    for stage, mode in task.used_objects():
        if stage == "collect" and isinstance(mode, CollectMode) and id(mode) not in seen:
            seen.add(id(mode))
            for path, leaf in flatten(mode.get_weights()):
                digest.update("/".join(path).encode() + _bytes_of(leaf))
    return digest.hexdigest()


def _bytes_of(weight: Any) -> bytes:
    try:
        return np.ascontiguousarray(torch.as_tensor(weight).cpu().numpy()).tobytes()
    except (TypeError, ValueError, RuntimeError):  # no number, such as a text in the extra state of a module
        return repr(weight).encode()


@foreign_arguments(ARGUMENTS["offline_data_fetcher"])
def offline_data_fetcher(
    cfg: RunConfig,
    dataset: OfflineDataset | str | PathLike[str] | Any,
    policy: LearnMode | None = None,
    reward_model: Any = None,
) -> OfflineDataFetcher:
    """Fetch a minibatch of a dataset: shuffled, each transition once in a pass.

    Box actions are clipped to their bounds, as they were for the environment. A pass has equal parts of about the batch size.
    For a policy that learns from windows, each transition is the last one of a window once in a pass. Unfinished episodes are
    left out then, because the return to go of their steps is unknown; with a warning if they have more than a tenth of all
    steps.

    In a data-parallel run, all processes have the same dataset, and each fetches its part of each batch.

    In an asynchronous run the next batch is fetched while the policy learns; the result is the same.

    Warns before the run if actions or observations are beyond the bounds of their Box, except actions of datasets that a policy
    of this library has recorded, or if policy.target_return is far above all returns.

    Writes:
        ctx.train_data: a tree [B, ...] of the dataset's columns; with policy.context_length, windows of so many steps, [B, K,
            ...], see `OfflineDataset.windows`.
        ctx.train_epoch: complete passes over the dataset, with this batch.

    Args:
        cfg: uses policy.learn.batch_size, in transitions or windows, and seed, of the order; and policy.context_length, where
            there is one.
        dataset: an `OfflineDataset`, the folder of one, or something else that `open_dataset` takes.
        policy: policy.learn_mode; if given, only the columns that its hooks read are fetched.
        reward_model: reads the batch before the policy does, so that the columns that it names are fetched too.

    Raises:
        DatasetError: there is no such dataset, it is damaged, or an observation, an action or, if the policy reads rewards, a
            reward is NaN or infinite, or a weight is negative, NaN or infinite; or the `action_mask` of an observation does not
            allow the recorded action. Without `policy`, such a reward, weight or action is a warning.
        ValueError: it is empty; it has no finished episode, and the policy learns from windows; policy.nstep is above 1, and
            its rewards are those of single steps; or, in a data-parallel run, the processes have different datasets.
        SpaceError: its spaces, or the shapes and dtypes of its observations and actions, do not fit the policy.
    """
    require_settings("offline_data_fetcher", cfg, "policy.learn.batch_size", "seed")
    warn_of_other_settings("offline_data_fetcher", cfg, policy, "learn.batch_size")
    if policy is not None:
        require_mode("offline_data_fetcher", policy, "learn_mode")
    data = open_dataset(dataset)
    if not len(data):
        raise ValueError(f"offline_data_fetcher got the dataset {data.name}, which has no transitions: collect some first.")
    length = getattr(cfg.policy, "context_length", None)
    if policy is not None:
        _require_spaces(data, policy)
    _require_single_steps(cfg, data)
    if length is not None:
        data = _finished(data)
    columns = columns_read(policy, reward_model)
    _require_numbers(data, columns)
    if columns is not None:
        columns = tuple(name for name in columns if name in data.columns)  # hooks may read columns that not all data has
    space = _space_of("action_space", data, policy)
    clip = None if space is None else clipper(space)
    if space is not None:
        _warn_of_actions(data, space)
    observation_space = _space_of("observation_space", data, policy)
    _require_allowed_actions(data, observation_space, space, policy)
    if observation_space is not None:
        _warn_of_observations(data, observation_space)
    _warn_of_target(cfg, data)
    epochs = _epochs(cfg, data)
    fetcher = OfflineDataFetcher(data, epochs, columns, length, clip, _settings_of_collection(cfg))
    fetcher.fixed_for = cfg.policy
    return fetcher


class OfflineDataFetcher:
    """The middleware that `offline_data_fetcher` returns."""

    fixed_for: object = None
    """The configuration of the policy whose settings `fixed_settings` names."""

    def __init__(
        self,
        data: OfflineDataset,
        epochs: EpochSampler,
        columns: tuple[str, ...] | None,
        length: int | None,
        clip: Callable[[Any], Any] | None,
        of_collection: Mapping[str, Any],
    ) -> None:
        self.__name__ = "offline_data_fetcher"
        self._of_collection = of_collection
        self._data, self._epochs, self._columns, self._length, self._clip = data, epochs, columns, length, clip
        self.fixed_settings = {
            "policy.learn.batch_size": "a pass over the dataset has equal parts of this size. Start a new run."
        }
        """Settings that this middleware cannot follow in a run, and why; see `reset_config`."""
        self.reads_batch_size = True
        self.data_lacks = _lacks(data, length)
        """What its data does not have that some policies learn from, and the fix."""
        contract(writes=("train_data", "train_epoch"), uses=(epochs,), stage="process")(self)

    def begin_run(self) -> None:
        """Count the passes of a resumed run, which may have no iteration left; warn of settings without effect. The task calls
        it."""
        task = own_run()
        task.ctx.train_epoch = self._epochs.epoch
        if self._of_collection and not any(stage == "collect" for stage, _ in task.used_objects()):
            given = ", ".join(f"policy.{name} = {value!r}" for name, value in self._of_collection.items())
            has, them = ("have", "them") if len(self._of_collection) > 1 else ("has", "it")
            warnings.warn(
                f"{given} {has} no effect, because this run learns from a dataset and collects nothing: leave {them} out.",
                stacklevel=2,
            )

    def __call__(self, ctx: OfflineRLContext) -> None:
        rows = self._epochs.next()
        if self._length is None:
            batch = self._data.take(rows, self._columns)
        else:
            batch = self._data.windows(rows, self._length, self._columns)
        ctx.train_data = batch if self._clip is None or not has_leaf(batch, "action") else _clipped(batch, self._clip)
        ctx.train_epoch = self._epochs.epoch


def _lacks(data: OfflineDataset, length: int | None) -> dict[str, str]:
    """What the batches of a dataset do not have that some policies learn from, and the fix."""
    use = "use an algorithm that learns from transitions of a dataset, such as BC, CQL, IQL, TD3+BC or the Decision Transformer"
    lacks = dict.fromkeys(("sequences",) if length else ("rollouts", "sequences"), use)
    for name in ("advantage", "return_"):
        if name not in data.columns:
            lacks[name] = f"{use}; or add the column, dataset.with_columns({name}=...)"
    return lacks


def _settings_of_collection(cfg: RunConfig) -> dict[str, Any]:
    """The settings of collection, exploration and replay that differ from the defaults, by their dotted names in cfg.policy."""
    if not isinstance(cfg, RunConfig):
        return {}
    own, default = (dict(settings_in(one.policy.to_dict())) for one in (cfg, type(cfg)()))
    return {
        name: value
        for name, value in own.items()
        if (name in _OF_COLLECTION or name.startswith(_SECTIONS_OF_COLLECTION)) and value != default.get(name, value)
    }


def _epochs(cfg: RunConfig, data: OfflineDataset) -> EpochSampler:
    """The order of the rows; of processes that learn together, that of rank 0."""
    ranks, seed = current_ranks(), cfg.seed
    if ranks is None:
        return EpochSampler(len(data), cfg.policy.learn.batch_size, seed, data.fingerprint)
    found = [text.split() for text in ranks.texts("offline_data_fetcher", f"{seed} {data.fingerprint}")]
    different = [rank for rank, (_, fingerprint) in enumerate(found) if fingerprint != found[0][1]]
    if different:
        raise ValueError(
            f"offline_data_fetcher got another dataset in rank {different[0]} than in rank 0: give all processes the same one, "
            "of which each takes its part."
        )
    return EpochSampler(len(data), cfg.policy.learn.batch_size, int(found[0][0]), data.fingerprint, ranks.rank, ranks.size)


def _space_of(name: str, data: OfflineDataset, policy: LearnMode | None) -> Any:
    """This space of the dataset, or of the policy if the dataset does not say it; None if both are unknown."""
    if data.knows(name):
        return getattr(data, name)
    made_with = getattr(policy, "made_with", None)
    return space_from(made_with[name]) if isinstance(made_with, dict) else None


def _finished(data: OfflineDataset) -> OfflineDataset:
    """The dataset without unfinished episodes, whose returns to go are unknown."""
    finished = data.finished
    if finished.all():
        return data
    count = int((~finished).sum())
    if not finished.any():
        raise ValueError(
            f"offline_data_fetcher got the dataset {data.name}, and none of its {count:,} episodes is recorded up to its end, "
            "so that the returns to go are unknown, which the policy learns from. If a time limit cut them, the data must say "
            "so in `truncated`; otherwise record longer."
        )
    steps = int(data.lengths[~finished].sum())
    if steps > _FEW * len(data):
        warnings.warn(
            f"{count:,} of {data.num_episodes:,} episodes of the dataset {data.name} are not recorded up to their end, and are "
            f"left out with their {steps:,} steps, because their returns to go are unknown. If a time limit cut them, the data "
            "must say so in `truncated`.",
            stacklevel=4,
        )
    return data.select(finished)


def _require_numbers(data: OfflineDataset, columns: tuple[str, ...] | None) -> None:
    """Refuse a dataset with NaN or infinity in a column that the policy reads, or a negative weight, before the run instead of
    when it is drawn."""
    read = {"obs", "next_obs", "action"} if columns is None else {*columns, *(("obs",) if "next_obs" in columns else ())}
    if found := data.problem_with_numbers([name for name in ("obs", "next_obs", "action", "reward") if name in read]):
        raise DatasetError(found)
    if columns is not None and "weight" in columns and (found := data.problem_with_weights()):
        raise DatasetError(found)
    if columns is None and (found := data.problem_with_numbers(["reward"]) or data.problem_with_weights()):
        warnings.warn(found, stacklevel=4)


def _require_allowed_actions(data: OfflineDataset, observation_space: Any, action_space: Any, policy: LearnMode | None) -> None:
    """Refuse recorded actions that their own masks do not allow, which have the probability 0; without `policy`, warn."""
    try:
        found = data.problem_with_masks(observation_space, action_space)
    except SpaceError:  # a part of observations with this name that is no mask, and a policy that takes it
        return
    if found and policy is not None:
        raise DatasetError(found)
    if found:
        warnings.warn(found, stacklevel=4)


def _require_single_steps(cfg: RunConfig, data: OfflineDataset) -> None:
    """Refuse n-step returns, because the rewards of a dataset are those of single steps."""
    nstep: int = getattr(cfg.policy, "nstep", 1)
    if nstep > 1 and "discount" not in data.columns:
        raise ValueError(
            f"policy.nstep = {nstep}, and the dataset {data.name} has the rewards of single steps: targets would be "
            "those of one step. Set policy.nstep = 1. nstep_reward_enhancer, which adds the column 'discount', sums the "
            "rewards of what a collector collects."
        )


def _warn_of_actions(data: OfflineDataset, space: gymnasium.Space[Any]) -> None:
    """Warn of actions beyond the bounds of their Box, of datasets that were not recorded by a policy of this library: its
    samples may be beyond them, and were clipped for the environment too."""
    if data.sources and all("policies" in source for source in data.sources):
        return
    rows = np.linspace(0, len(data) - 1, min(len(data), _ROWS_LOOKED_AT)).astype(np.int64)
    action = nested(data.take(np.unique(rows), ("action",)).action)
    for path, part in flatten(action):
        box = space
        for name in path:
            box = (subspaces(box) or {})[name]
        if not isinstance(box, gymnasium.spaces.Box) or box.dtype.kind != "f":
            continue
        found, low, high = (np.asarray(array, np.float64) for array in (part, box.low, box.high))
        reach = np.where(np.isfinite(high - low), high - low, 1.0)
        is_beyond = (np.maximum(low - found, found - high) > _ROUNDING * reach).reshape(len(found), -1).any(1)
        if is_beyond.any():
            farthest = found[is_beyond].ravel()[np.nanargmax(np.abs(found[is_beyond]))]
            warnings.warn(
                f"{is_beyond.mean():.1%} of the actions of the dataset {data.name} are beyond the bounds of {box}, up to "
                f"{farthest:g}: they are clipped to them for learning. If they have another scale than the environment, "
                f"rescale the column {'/'.join(('action', *path))}.",
                stacklevel=4,
            )


def _warn_of_observations(data: OfflineDataset, space: gymnasium.Space[Any]) -> None:
    """Warn of observations beyond the finite bounds of their Box, as of those of an environment."""
    rows = np.unique(np.linspace(0, len(data) - 1, min(len(data), _ROWS_LOOKED_AT)).astype(np.int64))
    for path, box in _bounded_boxes(space):
        size = max(_PIECE // max(int(np.prod(box.shape)), 1), 1)
        count, farthest = 0, 0.0
        low, high = (np.asarray(array, np.float64) for array in (box.low, box.high))
        reach = np.where(np.isfinite(high - low), high - low, np.maximum(1.0, np.minimum(np.abs(low), np.abs(high))))
        for begin in range(0, len(rows), size):
            found: Any = nested(data.take(rows[begin : begin + size], ("obs",)).obs)
            for name in path:
                found = found[name]
            found = np.asarray(found, np.float64)
            is_beyond = np.maximum(low - found, found - high) > _ROUNDING * reach
            if is_beyond.any():
                count += int(is_beyond.reshape(len(found), -1).any(1).sum())
                farthest = max(farthest, *found[is_beyond].tolist(), key=abs)
        if count:
            warnings.warn(
                f"{count / len(rows):.1%} of the observations of the dataset {data.name} are beyond the bounds of {box}, up to "
                f"{farthest:g} in the column {'/'.join(('obs', *path))}. If they have another scale than those of the "
                "environment, rescale the data; otherwise correct the bounds of the observation space. They stay as they are.",
                stacklevel=4,
            )


def _bounded_boxes(space: gymnasium.Space[Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Each Box of floats with a finite bound in a space, with its path."""
    if isinstance(space, gymnasium.spaces.Box):
        is_bounded = np.isfinite(space.low).any() or np.isfinite(space.high).any()
        return [(path, space)] if space.dtype is not None and space.dtype.kind == "f" and is_bounded else []
    return [found for name, part in (subspaces(space) or {}).items() for found in _bounded_boxes(part, (*path, name))]


def _warn_of_target(cfg: RunConfig, data: OfflineDataset) -> None:
    """Warn of a return to ask for that is far above those in the dataset."""
    target: float | None = getattr(cfg.policy, "target_return", None)
    if target is None:
        return
    lowest, highest = float(data.returns.min()), float(data.returns.max())
    if target > highest + (highest - lowest):
        warnings.warn(
            f"policy.target_return = {target:g} is far above the highest return in the dataset {data.name}, {highest:g}: the "
            "policy learns nothing of such returns. Set it to about the highest one.",
            stacklevel=4,
        )


def _clipped(batch: Tree, clip: Callable[[Any], Any]) -> Tree:
    """The batch with actions within their bounds."""
    action = map_leaves(lambda leaf: leaf.numpy(), nested(batch.action))
    clipped = clip(action)
    return batch if clipped is action else with_leaves(batch, action=map_leaves(torch.from_numpy, clipped))


def _require_spaces(data: OfflineDataset, policy: LearnMode) -> None:
    """Refuse a dataset whose spaces, if it says them, or whose columns do not fit the spaces of the policy."""
    made_with: Any = getattr(policy, "made_with", None)
    if not isinstance(made_with, dict):
        return
    observation_space, action_space = (space_from(made_with[name]) for name in ("observation_space", "action_space"))
    fix = "make the policy with dataset.observation_space and dataset.action_space"
    require_spaces(data, observation_space, action_space, "the policy", fix)
