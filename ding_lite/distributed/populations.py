"""Populations: members on hosts, of which the worse copy weights and settings from the better ones."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ding_lite.basics import ConfigError, absolute, add_note, did_you_mean, move_aside, require_extra, write_atomically
from ding_lite.basics.messages import describe_error
from ding_lite.config import PopulationConfig
from ding_lite.data.random_generators import require_generator_state
from ding_lite.distributed.exploring import as_mutation, drawn_values, explored
from ding_lite.distributed.members import Member, PipelineBuilder
from ding_lite.engine import current_task
from ding_lite.policy_base import settings_of
from ding_lite.processes import Host, LocalHost, LostValueError, ProcessHost, Shared, WorkerDied, release_hosts
from ding_lite.processes.pickles import dumps_apart, loads_apart
from ding_lite.run_configs import RunConfig

RunConfigType = TypeVar("RunConfigType", bound=RunConfig)
_NEXT_SEED = 1_000_003  # between the seeds of a member and of the one that replaces it
_FORMAT = 1


class PopulationError(RuntimeError):
    """Too few members of a population are left, or its decisions cannot be replayed."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of a member, and where it comes from: a slice of this round, and the weights that the member has now."""

    member: str
    value: float
    round: int
    env_step: int
    """Environment steps of the member."""
    train_iter: int
    """Gradient steps of the member."""
    evaluated_at: int
    """Gradient steps of the member at its last evaluation; -1 without one."""
    time: float
    """Seconds since 1970."""

    def stamp(self) -> dict[str, Any]:
        """The score as plain data, without the time, which differs from run to run."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "time"}


def member_configs(
    cfg: RunConfigType, count: int, hyperparam_mutations: Mapping[str, Any] | None = None, seed: int = 0
) -> list[RunConfigType]:
    """Configurations of members: copies with the seeds cfg.seed, cfg.seed + 1 and so on, and with values drawn at random.

    Args:
        cfg: the configuration of a run.
        count: number of members.
        hyperparam_mutations: settings to draw; see `Population`. None for none.
        seed: random seed of the values.
    """
    rng, found = np.random.default_rng([seed, 1]), []
    for number in range(count):
        one = copy.deepcopy(cfg)
        one.seed = cfg.seed + number
        found.append(one.override(drawn_values(hyperparam_mutations or {}, rng)))
    return found


class Population:
    """Members that run beside each other. After each round, the worse ones copy the better ones (PBT).

    In `evolve`, each member of the bottom quantile copies the weights and the moments of the optimizer of a member of the top
    quantile, drawn at random, and explores near its settings. The weights are those that the member has at this moment,
    in this round; nothing is kept from round to round. Counters, data, random generators and environments stay those of the
    member that copies.

    A member that has failed is left out, and replaced by a new one that copies a good one. A population is part of
    the state of a run: `CkptSaver(population, cfg.exp_name)` saves it, and the same script continues it.

    Args:
        cfg: uses all settings but max_step, resume and log.
        pipeline: adds the middleware of a member, and returns its policy; see `Member`. In processes it is sent by
            cloudpickle.
        configs: the configuration of each member, with seeds and first values; see `member_configs`. Their exp_name becomes a
            subfolder of `cfg.exp_name`.
        hyperparam_mutations: settings to explore, by dotted name such as "policy.learn.learning_rate", each a
            `Range(low, high)`, a list of values, or a function of a random generator. All of them must be live.
        custom_explore_fn: called with the new values by name, returns those to use, as plain data; the last step of exploring.
        make_host: function of a member's name that makes its host; None for `cfg.backend`.

    Raises:
        ConfigError: a setting does not exist, or cannot be changed in a run.
        ValueError: there are too few members, or their networks differ.

    Reference:
        Jaderberg et al. (2017), "Population Based Training of Neural Networks", https://arxiv.org/abs/1711.09846.
    """

    def __init__(
        self,
        cfg: PopulationConfig,
        pipeline: PipelineBuilder,
        configs: Sequence[RunConfig],
        hyperparam_mutations: Mapping[str, Any],
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        make_host: Callable[[str], Host] | None = None,
    ) -> None:
        if len(configs) < max(1, cfg.min_members):
            raise ValueError(f"a population of {len(configs)} members, and cfg.min_members = {cfg.min_members}: add members.")
        _require_same_networks(configs)
        self.cfg, self._pipeline, self._custom = cfg, pipeline, custom_explore_fn
        self._mutations = {name: as_mutation(name, given) for name, given in hyperparam_mutations.items()}
        width = len(str(len(configs) - 1))
        self.names = tuple(f"member_{number:0{width}d}" for number in range(len(configs)))
        """The names of all members, also of failed ones."""
        self._configs: dict[str, RunConfig] = {}
        for name, one in zip(self.names, configs):
            _require_live(one, self._mutations)
            folder = str(absolute(cfg.exp_name) / "members" / name)
            # The state of the population has those of its members.
            self._configs[name] = copy.deepcopy(one).override({"exp_name": folder, "storage_path": None})
        self.sign = 1 if cfg.mode == "max" else -1
        """1 if larger scores are better, otherwise -1."""
        self.round = 0
        """Rounds that `evolve` has completed."""
        self.failed: dict[str, str] = {}
        """Members that have failed and were not replaced, with the error."""
        self._generations = dict.fromkeys(self.names, 0)
        self._finished: set[str] = set()
        self._learned_at: dict[str, int] = {}
        """Gradient steps of members when they last copied another one."""
        self._rng = np.random.default_rng([cfg.seed, 0])
        self._make_host = make_host or _host_maker(cfg, len(configs))
        self._log = _Log(absolute(cfg.exp_name) / "decisions.jsonl")
        self._replayed = None if cfg.replay is None else _read(Path(cfg.replay))
        self._has_warned = False
        self.values: dict[str, dict[str, Any]] = {name: _values(one, self._mutations) for name, one in self._configs.items()}
        """The explored settings of each member by dotted name."""
        self._hosts: dict[str, Host] = {}
        try:
            for name in self.names:
                self._begin_member(name)
            for name in self.names:
                self._hosts[name].result()
        except BaseException:
            self.close()
            raise

    def _begin_member(self, name: str) -> None:
        self._hosts[name] = self._make_host(name)
        self._hosts[name].submit(_make, self._pipeline, self._configs[name], lasting=True)

    @property
    def live(self) -> list[str]:
        """The names of the members that have not failed."""
        return [name for name in self.names if name not in self.failed]

    @property
    def is_finished(self) -> bool:
        """Whether a middleware has ended the run of every member."""
        return self._finished >= set(self.live)

    def advance(self) -> dict[str, dict[str, Any]]:
        """Run a slice of `cfg.interval` iterations of every member. Returns the results of each; see `Member.advance`.

        A member that raises an error has failed, and is left out.

        Raises:
            PopulationError: fewer members than `cfg.min_members` are left.
        """
        task, results, errors = current_task(), {}, {}
        requests = {name: self._hosts[name].submit(_advance, self.cfg.interval) for name in self.live}
        for name, request in requests.items():
            try:
                results[name] = self._hosts[name].result(lambda: task.running and task.stopping, request)
            except Exception as error:
                if task.running and task.stopping:
                    raise
                errors[name] = error
        for name, found in errors.items():
            self._fail(name, found)
        self._finished = {name for name, result in results.items() if result["is_finished"]}
        if len(self.live) < self.cfg.min_members:
            words = "; ".join(f"{name}: {why}" for name, why in self.failed.items())
            failure = PopulationError(
                f"{len(self.live)} of {len(self.names)} members are left, and cfg.min_members = {self.cfg.min_members}. {words}"
            )
            raise failure from next(iter(errors.values()), None)
        return results

    def _fail(self, name: str, error: Exception) -> None:
        self.failed[name] = describe_error(error)
        self._log.write({"round": self.round, "kind": "failed", "member": name, "error": self.failed[name]})
        warnings.warn(f"{name} has failed, and the population goes on without it: {self.failed[name]}", stacklevel=3)
        release_hosts([self._hosts[name]], for_good=True)

    def scores(self, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Score]:
        """The scores of members by these results of `advance`. Members without a finite score in this round are left out."""
        found = {}
        for name, result in results.items():
            value = result.get(self.cfg.metric)
            if value is None or isinstance(value, str) or not math.isfinite(value):
                continue
            env_step, train_iter = (int(result.get(it, -1)) for it in ("env_step", "train_iter"))
            evaluated_at = int(result.get("last_eval_iter", -1))
            is_evaluation = self.cfg.metric == "eval_value" or self.cfg.metric.startswith("evaluate/")
            if is_evaluation and evaluated_at < self._learned_at.get(name, -1):
                continue  # of the weights before it copied others, because an evaluation may end some iterations later
            found[name] = Score(name, float(value), self.round, env_step, train_iter, evaluated_at, time.time())
        if results and not found and not self._has_warned:
            self._has_warned = True
            known = sorted({name for result in results.values() for name in result})
            warnings.warn(
                f"no member has the metric {self.cfg.metric!r} in this round{did_you_mean(self.cfg.metric, known)} The results "
                f"have {', '.join(known)}. Evaluate more often than every {self.cfg.interval} iterations, or set cfg.metric.",
                stacklevel=2,
            )
        return found

    def evolve(self, scores: Mapping[str, Score]) -> list[dict[str, Any]]:
        """Replace failed members, and let the worse ones copy better ones. Returns the decisions, as in the log.

        Args:
            scores: of this round; members without a score stay as they are.

        Raises:
            ValueError: a score is of another round.
            PopulationError: a decision cannot be replayed.
            TypeError, ConfigError: a function that explores has returned something else than plain data, or values that the
                settings cannot have; then no member has changed.
        """
        stale = [score for score in scores.values() if score.round != self.round]
        if stale:
            raise ValueError(f"the score of {stale[0].member} is of round {stale[0].round}, and this is round {self.round}.")
        decisions = self._decide(scores) if self._replayed is None else self._decided()
        done = []
        for decision in decisions:
            if "error" in decision:  # it was not carried out
                continue
            done.append(self._carry_out(decision, scores))
            self._log.write(done[-1])
        self.round += 1
        return done

    def _decided(self) -> list[dict[str, Any]]:
        """The decisions of this round in the replayed log."""
        assert self._replayed is not None
        return [line for line in self._replayed if line["round"] == self.round and line["kind"] != "failed"]

    def _decide(self, scores: Mapping[str, Score]) -> list[dict[str, Any]]:
        ranked = sorted(scores.values(), key=lambda score: (-score.value * self.sign, score.member))
        count = math.ceil(len(ranked) * self.cfg.quantile_fraction)
        count = min(count, len(ranked) // 2)
        top = [score.member for score in ranked[: max(count, 1)]]
        bottom = [score.member for score in ranked[len(ranked) - count :] if score.member not in self._finished]
        chosen = []
        if self.cfg.replace_failed and top:
            chosen += [("replace", name) for name in self.names if name in self.failed]
        if self.round >= self.cfg.burn_in and self.cfg.quantile_fraction:
            chosen += [("exploit", name) for name in bottom]
        decisions = []
        for kind, name in chosen:
            source = top[int(self._rng.integers(len(top)))]
            new = self._explored(source)
            decisions.append({"round": self.round, "kind": kind, "member": name, "source": source, "new": new})
        return decisions

    def _explored(self, source: str) -> dict[str, Any]:
        cfg, config = self.cfg, self._configs[source]
        new = explored(
            self.values[source],
            self._mutations,
            self._rng,
            cfg.resample_probability,
            cfg.perturbation_factors,
            self._custom,
            lambda name, value: _is_allowed(config, name, value),
        )
        if self._custom is not None:  # here, because no member has changed yet
            _require_live(config, new, "custom_explore_fn returned {!r}, which cannot be explored")
            config.trial().override({**self.values[source], **new})
        return new

    def _carry_out(self, decision: Mapping[str, Any], scores: Mapping[str, Score]) -> dict[str, Any]:
        """Let a member copy another one. Returns the decision, with the scores and the old values."""
        name, source, new = decision["member"], decision["source"], decision["new"]
        for one in (name, source):
            is_lost = one in self.failed and (one == source or decision["kind"] != "replace")
            if one not in self.names or (is_lost and self._replayed is not None):
                raise PopulationError(f"round {self.round} cannot be replayed: {one} does not exist or has failed.")
        old = dict(self.values[name])
        score, source_score = (scores[one].stamp() if one in scores else None for one in (name, source))
        done = {**decision, "score": score, "source_score": source_score, "old": old, "new": dict(new)}
        error = self._take_over(decision)
        if error is not None and name not in self.failed:
            warnings.warn(f"{name} has copied nothing from {source}, and is unchanged: {error}", stacklevel=4)
        return done if error is None else {**done, "error": error}

    def _take_over(self, decision: Mapping[str, Any]) -> str | None:
        """Let a member copy another one. Returns None, or why what the source has learned is lost; then nothing has changed.

        What the source has learned goes from host to host. If it is lost on the way, the source is asked once more.
        """
        name, source = decision["member"], decision["source"]
        # A member whose replacement is replayed may not have failed again; the new one has another seed.
        must_replace = decision["kind"] == "replace" and (name in self.failed or self._replayed is not None)
        error = ""
        for _ in range(2):
            lost = [one for one in (source, name) if one in self.failed and (one == source or decision["kind"] != "replace")]
            if lost:
                return error or f"{lost[0]} has failed"
            try:
                learned = self._ask(source, _learned)
            except WorkerDied as died:
                self._fail(source, died)
                return self.failed[source]
            values = {**self.values[source], **decision["new"]}
            try:
                if must_replace:
                    self._replace(name, source)
                    must_replace = False
                found, learned_at, error = self._ask(name, _take_over, learned, values)
            except WorkerDied as died:
                self._fail(name, died)
                return self.failed[name]
            if found is not None:
                self.values[name], self._learned_at[name] = found, learned_at
                return None
        if decision["kind"] == "replace":
            self._fail(name, LostValueError(error))
        return error

    def _replace(self, name: str, source: str) -> None:
        """A new member with the configuration of the source and a seed of its own."""
        self._generations[name] += 1
        config = copy.deepcopy(self._configs[source])
        config.override({"exp_name": self._configs[name].exp_name, "seed": (self._configs[name].seed + _NEXT_SEED) % 2**62})
        self._configs[name] = config
        release_hosts([self._hosts[name]], for_good=True)
        self._begin_member(name)
        self._hosts[name].result()
        self.failed.pop(name, None)

    def _ask(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        host = self._hosts[name]
        try:
            return host.result(request=host.submit(fn, *args))
        except Exception as error:
            add_note(error, f"in {name} of the population")
            raise

    def state_dict(self) -> dict[str, Any]:
        """The state of the population: members, settings, random generator and the number of decisions.

        A member whose process has died has failed, and is left out.
        """
        members = {}
        for name in self.live:
            try:
                members[name] = self._hosts[name].state("member")["member"]
            except WorkerDied as error:
                self._fail(name, error)
        return {
            "format": _FORMAT,
            "names": list(self.names),
            "round": self.round,
            "rng": self._rng.bit_generator.state,
            "failed": dict(self.failed),
            "finished": sorted(self._finished),
            "generations": dict(self._generations),
            "learned_at": dict(self._learned_at),
            "values": copy.deepcopy(self.values),
            "configs": {name: config.to_dict() for name, config in self._configs.items()},
            "decisions": self._log.count,
            "members": members,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved population with the same members.

        Raises:
            ValueError: the state is of another population, or its random state is not valid.
        """
        if state.get("format") != _FORMAT or list(state["names"]) != list(self.names):
            raise ValueError(f"the state is that of the members {', '.join(state.get('names', []))}, and this population has "
                             f"{', '.join(self.names)}: make it with the same number of members.")  # fmt: skip
        require_generator_state("the state's ['rng']", state["rng"], self._rng.bit_generator)
        for name in self.names:
            is_made_anew = state["generations"][name] != self._generations[name] or name in self.failed
            if is_made_anew:  # also for a failed member, because the seed of the next one depends on it
                own = {"exp_name": self._configs[name].exp_name}  # the folder may have moved
                config = copy.deepcopy(self._configs[name])
                config.restore({**state["configs"][name], **own})
                self._configs[name] = config
            if name in state["failed"]:
                release_hosts([self._hosts[name]], for_good=True)
            elif is_made_anew:
                release_hosts([self._hosts[name]], for_good=True)
                self._begin_member(name)
                self._hosts[name].result()
        self.failed = dict(state["failed"])
        for name in self.live:
            self._hosts[name].load_state({"member": state["members"][name]})
        self.round, self._finished = state["round"], set(state["finished"])
        self._generations, self._learned_at = dict(state["generations"]), dict(state["learned_at"])
        self.values = {name: dict(values) for name, values in state["values"].items()}
        self._rng.bit_generator.state = state["rng"]
        self._log.cut(state["decisions"])

    def release(self) -> None:
        """Free the processes of the members. The next request starts them again in the same state."""
        release_hosts([self._hosts[name] for name in self.live if name in self._hosts])

    def close(self) -> None:
        """End the members, and free their processes and environments."""
        release_hosts(list(self._hosts.values()), for_good=True)


def _require_live(cfg: RunConfig, names: Iterable[str], problem: str = "hyperparam_mutations[{!r}] cannot be explored") -> None:
    """Raise ConfigError for settings that do not exist or cannot be changed in a run."""
    table = {f"policy.{name}": (is_live, words) for name, is_live, words in settings_of(cfg.policy)}
    for name in names:
        if name in table and table[name][0]:
            continue
        advice = type(cfg).about(name)
        hint = did_you_mean(name, table) if advice is None else f": {advice}"
        why = f"{type(cfg).__name__} has no such setting of the policy{hint}"
        if name in table:
            why = table[name][1]
        raise ConfigError(f"{problem.format(name)}: {why}")


def _is_allowed(cfg: RunConfig, name: str, value: Any) -> bool:
    """Whether a setting may have this value."""
    try:
        cfg.trial().override({name: value})
    except ConfigError:
        return False
    return True


def _values(cfg: RunConfig, mutations: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the explored settings in a configuration."""
    found = {}
    for name in mutations:
        value: Any = cfg
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = copy.deepcopy(value)
    return found


def _host_maker(cfg: PopulationConfig, count: int) -> Callable[[str], Host]:
    """A function of a member's name that makes its host."""
    if cfg.backend == "local":
        return lambda name: LocalHost()
    make: Callable[..., Host] = ProcessHost
    if cfg.backend == "ray":
        require_extra("ray", "ray", "a population with backend='ray'")
        make = importlib.import_module("ding_lite.distributed.ray_hosts").host_factory(  # by name, because it imports Ray
            "Population",
            count,
            restart=cfg.restart,
            address=cfg.ray_address,
            num_cpus=cfg.num_cpus_per_member,
            num_gpus=cfg.num_gpus_per_member,
        )
    return lambda name: make(name, timeout_s=cfg.timeout_s, restart=cfg.restart)


class _Log:
    """The decisions as lines of JSON. Unless `cut` was called, the first line begins a new file, and that of an earlier run is
    renamed."""

    def __init__(self, path: Path) -> None:
        self._path, self.count, self._goes_on = path, 0, False

    def write(self, decision: Mapping[str, Any]) -> None:
        line = json.dumps({**decision, "time": time.time()}) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._goes_on:
            move_aside(self._path)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._goes_on, self.count = True, self.count + 1

    def cut(self, count: int) -> None:
        """Keep the first lines of the file, those of a saved state. With none, the file may be that of an earlier run, and
        stays as it is until the first line."""
        if not count:
            self._goes_on, self.count = False, 0
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True) if self._path.exists() else []
        write_atomically(self._path, "".join(lines[:count]).encode())
        self._goes_on, self.count = True, count


def _read(path: Path) -> list[dict[str, Any]]:
    """The decisions in a file.

    Raises:
        PopulationError: it cannot be read.
    """
    try:
        *whole, cut = path.read_text(encoding="utf-8").split("\n")
        lines = [json.loads(line) for line in whole]
        with contextlib.suppress(ValueError):  # as a killed program leaves it; mostly, there is nothing after the last newline
            lines.append(json.loads(cut))
        for line in lines:
            line["round"], line["kind"], line["member"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PopulationError(f"cfg.replay = {str(path)!r} is no file of decisions: {error}") from error
    return lines


# Functions that run on the hosts.


def _make(objects: dict[str, Any], pipeline: PipelineBuilder, cfg: RunConfig) -> None:
    objects["member"] = Member(pipeline, cfg)


def _advance(objects: dict[str, Any], iterations: int) -> dict[str, Any]:
    found: dict[str, Any] = objects["member"].advance(iterations)
    return found


def _learned(objects: dict[str, Any]) -> Shared[Any]:
    """What the member has learned now, packed, because the program only passes it on; on a cluster, a reference to it."""
    packed = dumps_apart(objects["member"].learned_state())
    return objects.get("share", Shared)(packed)  # type: ignore[no-any-return]


def _require_same_networks(configs: Sequence[RunConfig]) -> None:
    """Raise ValueError if settings of networks differ, because members copy each other's weights."""
    models = [getattr(config.policy, "model", None) for config in configs]
    for number, model in enumerate(models):
        mine, first = (vars(it) if it is not None else {} for it in (model, models[0]))
        differing = [name for name in {**first, **mine} if mine.get(name) != first.get(name)]
        if differing:
            name = differing[0]
            raise ValueError(
                f"configs[{number}] has policy.model.{name} = {mine.get(name)!r}, and configs[0] {first.get(name)!r}: members "
                "copy each other's weights, so give them all the same network."
            )


def _take_over(
    objects: dict[str, Any], learned: Shared[Any], values: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, int, str]:
    """Load what another member has learned, with these settings: completely, or not at all.

    Returns:
        The settings, or None if what was learned is lost; the gradient steps that the member has taken; the reason.
    """
    member = objects["member"]
    try:
        state = loads_apart(*learned.value)
    except LostValueError as error:
        return None, member.policy.train_iter, str(error)
    before = member.reset_config(values)
    try:
        member.load_learned_state(state)
    except BaseException:
        member.reset_config(before)
        raise
    return _values(member.cfg, values), member.policy.train_iter, ""
