"""Populations: who copies whom, what comes with it, and that the same seed gives the same decisions."""

import copy
import dataclasses
import functools
import json
import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from member_pipelines import learned, ppo, ppo_config, same

from ding_lite.basics import ConfigError
from ding_lite.config import DQNConfig, EnvConfig, PBTConfig, PopulationConfig
from ding_lite.contexts import PopulationContext
from ding_lite.distributed import Choices, Population, PopulationError, Range, Score, explored, member_configs
from ding_lite.engine import Task, contract
from ding_lite.middleware import CkptSaver, online_logger, population_exploiter, population_trainer
from ding_lite.processes import LocalHost, LostValueError, Shared

RATE = {"policy.learn.learning_rate": Range(1e-4, 1e-2, log=True), "policy.learn.batch_size": [4, 8, 16]}


def config(folder, **changes):
    return PopulationConfig().override(
        {"exp_name": str(folder), "interval": 2, "num_members": 4, "log.every_s": 1000.0, "metric": "learn/entropy", **changes}
    )


def evaluated_ppo(cfg):
    return ppo(cfg.override({"policy.eval.evaluator.eval_freq": 1}))


def breaks(cfg):
    """A pipeline whose member with the seed 2 fails in its third iteration."""
    from ding_lite import task

    policy = ppo(cfg)

    @contract(stage="record")
    def fail(ctx):
        if cfg.seed == 2 and ctx.total_step == 2:
            raise RuntimeError("broken")

    task.use(fail)
    return policy


def dies(cfg):
    """A pipeline whose member with the seed 2 is killed in its third iteration."""
    from ding_lite import task

    policy = ppo(cfg)

    @contract(stage="record")
    def fall(ctx):
        if cfg.seed == 2 and ctx.total_step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    task.use(fall)
    return policy


@pytest.fixture
def make(tmp_path):
    """Makes populations, which are closed at the end."""
    made = []

    def population(pipeline=ppo, mutations=RATE, folder=tmp_path / "run", custom=None, make_host=None, **changes):
        cfg = config(folder, **changes)
        configs = member_configs(ppo_config(), cfg.num_members, mutations)
        made.append(Population(cfg, pipeline, configs, mutations, custom, make_host))
        return made[-1]

    yield population
    for one in made:
        one.close()


def turn(population, rounds=1, scores=None):
    """Rounds without a task. Returns the decisions."""
    found = []
    for _ in range(rounds):
        results = population.advance()
        found += population.evolve(population.scores(results) if scores is None else given(population, scores))
    return found


def given(population, values):
    return {name: Score(name, value, population.round, 1, 1, 1, 0.0) for name, value in zip(population.live, values)}


def member(population, name):
    return population._hosts[name].objects["member"]


def lines(folder):
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]


class TestExploring:
    def test_values_are_perturbed_by_a_factor_within_their_range_or_drawn_anew(self):
        rng, mutations = np.random.default_rng(0), {"rate": Range(1e-4, 1e-2, log=True), "size": Range(8, 64)}
        values = {"rate": 9e-3, "size": 10}
        found = [explored(values, mutations, rng, resample_probability=0.0) for _ in range(50)]
        assert {round(one["rate"], 6) for one in found} == {0.0072, 0.01}
        assert {one["size"] for one in found} == {8, 12}
        drawn = [explored(values, mutations, rng, resample_probability=1.0) for _ in range(500)]
        assert all(1e-4 <= one["rate"] <= 1e-2 and 8 <= one["size"] <= 64 for one in drawn)
        assert 0.4 < sum(one["rate"] < 1e-3 for one in drawn) / 500 < 0.6
        assert all(isinstance(one["size"], int) for one in [*drawn, *found])

    @pytest.mark.parametrize(
        ("within", "value", "factor", "expected"),
        [(Range(0.3, 5.0), 1, 0.2, 1), (Range(0.0, 2.6), 2, 1.5, 2), (Range(0.3, 0.6), 1, 1, 0.6)],
    )
    def test_whole_numbers_stay_within_a_range_with_fractional_limits(self, within, value, factor, expected):
        new = within.perturb(value, (factor,), np.random.default_rng(0))
        assert new == expected
        assert type(new) is type(expected)

    @pytest.mark.parametrize(("value", "expected"), [(0, {0}), (1, {1, 2}), (2, {1, 3}), (-2, {-1, -3}), (9, {7, 11})])
    def test_small_whole_numbers_are_perturbed_too(self, value, expected):
        def perturbed(mutation):
            rng = np.random.default_rng(0)
            return {explored({"x": value}, {"x": mutation}, rng, 0.0)["x"] for _ in range(50)}

        assert perturbed(lambda rng: int(rng.integers(10))) == expected
        assert perturbed(Range(-9, 20)) == expected
        assert perturbed(Range(1.5, 2.5)) == {2}

    def test_choices_move_to_a_neighbour(self):
        rng = np.random.default_rng(0)
        found = {explored({"x": "b"}, {"x": ["a", "b", "c", "d"]}, rng, 0.0)["x"] for _ in range(50)}
        assert found == {"a", "c"}
        assert {explored({"x": "a"}, {"x": ["a", "b"]}, rng, 0.0)["x"] for _ in range(50)} == {"a", "b"}
        assert explored({"x": 7}, {"x": Choices([1])}, rng, 0.0) == {"x": 1}

    def test_functions_draw_and_change(self):
        rng = np.random.default_rng(0)
        mutations = {"x": lambda rng: 5.0}
        assert explored({"x": 1.0}, mutations, rng, 1.0) == {"x": 5.0}
        assert explored({"x": 1.0}, mutations, rng, 0.0, (2.0,)) == {"x": 2.0}

    def test_numbers_out_of_range_and_other_values_of_functions_are_drawn_anew(self):
        rng = np.random.default_rng(0)
        mutations = {
            "rate": lambda rng: rng.choice([0.5, 0.9]),
            "flag": lambda rng: bool(rng.integers(2)),
            "schedule": lambda rng: [[0, float(rng.integers(3))]],
            "size": lambda rng: rng.integers(1, 5),
        }
        values = {"rate": 0.9, "flag": True, "schedule": [[0, 1.0]], "size": 4}
        allowed = {"rate": lambda x: 0 <= x <= 1}
        found = [
            explored(values, mutations, rng, 0.0, is_allowed=lambda name, value: name != "rate" or allowed[name](value))
            for _ in range(60)
        ]
        assert {round(one["rate"], 6) for one in found} == {0.72, 0.5, 0.9}
        assert {one["flag"] for one in found} == {True, False}
        assert {one["schedule"][0][1] for one in found} == {0.0, 1.0, 2.0}
        assert {one["size"] for one in found} == {5, 3}
        drawn = explored(values, mutations, rng, 1.0)
        assert json.loads(json.dumps(drawn)) == drawn

    def test_a_function_that_fails_is_named(self):
        with pytest.raises(TypeError) as caught:
            explored({"x": 1.0}, {"x": np.random.uniform}, np.random.default_rng(0), 1.0)
        assert "hyperparam_mutations['x']" in caught.value.__notes__[0]

    def test_the_last_word_has_a_function(self):
        rng, mutations = np.random.default_rng(0), {"x": lambda rng: np.float32(5.0)}
        assert explored({"x": 1.0}, mutations, rng, 1.0, custom_explore_fn=lambda new: {"x": new["x"] + 1}) == {"x": 6.0}

    def test_between_whole_limits_values_are_whole_also_on_a_logarithmic_scale(self):
        rng = np.random.default_rng(0)
        drawn = [Range(1, 7, log=True).draw(rng) for _ in range(3000)]
        assert {*map(type, drawn)} == {int}
        assert {*drawn} == {1, 2, 3, 4, 5, 6, 7}
        for low, high in ((1, 1), (2, 3), (4, 7)):  # each is as long as the others on this scale
            assert sum(low <= it <= high for it in drawn) == pytest.approx(1000, abs=130)
        assert isinstance(Range(2.0, 512, log=True).draw(rng), float)
        sizes = member_configs(ppo_config(), 3, {"policy.learn.batch_size": Range(4, 64, log=True)})
        assert {type(one.policy.learn.batch_size) for one in sizes} == {int}

    def test_at_an_end_a_choice_stays_half_of_the_time(self):
        rng, choices = np.random.default_rng(0), Choices([1, 2, 3])
        found = [choices.perturb(3, (1.0,), rng) for _ in range(1000)]
        assert {*found} == {2, 3}
        assert found.count(3) == pytest.approx(500, abs=80)
        assert {choices.perturb(2, (1.0,), rng) for _ in range(100)} == {1, 3}

    @pytest.mark.parametrize("wrong", [lambda: Range(2, 1), lambda: Range(0, 1, log=True), lambda: Choices([])])
    def test_wrong_ones_are_refused(self, wrong):
        with pytest.raises(ValueError, match="wants"):
            wrong()

    def test_a_function_without_the_generator_is_refused_by_name(self, make):
        with pytest.raises(TypeError, match=r"hyperparam_mutations\['policy.learn.learning_rate'\] .* generator of numpy"):
            make(mutations={"policy.learn.learning_rate": lambda: 1e-3})

    def test_a_decorated_function_is_called_as_it_is_written(self):
        def between(rng, low, high):
            return float(rng.uniform(low, high))

        @functools.wraps(between)
        def small(rng):
            return between(rng, 0.0, 1e-3)

        assert 0.0 < explored({"x": 1.0}, {"x": small}, np.random.default_rng(0), 1.0)["x"] < 1e-3


@pytest.mark.slow
def test_a_population_explores_within_the_range_of_a_setting(make):
    name = "policy.collect.discount_factor"
    population = make(
        mutations={name: lambda rng: rng.uniform(0.9, 0.999)}, resample_probability=0.0, perturbation_factors=(1.2, 1.3)
    )
    (decision,) = turn(population, scores=[2.0, 4.0, 3.0, 1.0])
    assert 0.9 <= decision["new"][name] <= 0.999
    assert member(population, decision["member"]).cfg.policy.collect.discount_factor == decision["new"][name]


@pytest.mark.slow
def test_a_population_explores_with_a_function(make):
    population = make(
        mutations={"policy.learn.learning_rate": lambda rng: float(rng.uniform(1e-4, 1e-3))}, resample_probability=1.0
    )
    (decision,) = turn(population, scores=[2.0, 4.0, 3.0, 1.0])
    rate = member(population, decision["member"]).cfg.policy.learn.learning_rate
    assert decision["kind"] == "exploit"
    assert 1e-4 <= rate <= 1e-3
    assert rate != member(population, decision["source"]).cfg.policy.learn.learning_rate


def test_the_worst_take_over_weights_and_moments_and_keep_the_rest(make):
    population = make()
    population.advance()
    worst, best = member(population, "member_3"), member(population, "member_1")
    before, configs = learned(worst), {one: member(population, one).cfg.to_dict() for one in population.names}
    (decision,) = population.evolve(given(population, [2.0, 4.0, 3.0, 1.0]))
    assert (decision["kind"], decision["member"], decision["source"]) == ("exploit", "member_3", "member_1")
    assert all(map(torch.equal, worst.policy.weights, best.policy.weights))
    after = learned(worst)
    assert same(after["optimizer"]["state"], learned(best)["optimizer"]["state"])
    for name in ("train_iter", "learn", "collect", "evaluate"):
        assert same(after[name], before[name])
    new = {name: population.values["member_3"][name] for name in RATE}
    assert decision["new"] == new == {**decision["new"]}
    assert worst.cfg.policy.learn.learning_rate == new["policy.learn.learning_rate"]
    assert after["optimizer"]["param_groups"][0]["lr"] == new["policy.learn.learning_rate"]
    assert new["policy.learn.learning_rate"] != population.values["member_1"]["policy.learn.learning_rate"]
    for name in ("member_0", "member_1", "member_2"):
        assert member(population, name).cfg.to_dict() == configs[name]


@pytest.mark.slow
def test_the_score_in_the_log_is_that_of_this_round(make, tmp_path):
    population = make(evaluated_ppo, metric="eval_value")
    turn(population, 3)
    found = lines(tmp_path / "run")
    assert [line["round"] for line in found] == [0, 1, 2]
    for line in found:
        assert line["score"]["round"] == line["source_score"]["round"] == line["round"]
        assert line["source_score"]["member"] == line["source"]
        assert line["score"]["value"] <= line["source_score"]["value"]
        assert line["score"]["evaluated_at"] >= 0
        assert set(line["old"]) == set(line["new"]) == {*RATE}
    with pytest.raises(ValueError, match="the score of member_0 is of round 0, and this is round 3"):
        population.evolve({"member_0": Score("member_0", 1.0, 0, 1, 1, 1, 0.0)})


def test_an_evaluation_of_earlier_weights_is_no_score(make):
    population = make(evaluated_ppo, metric="eval_value")
    results = population.advance()
    population.evolve(population.scores(results))
    taken = next(iter(population._learned_at))
    assert taken not in population.scores(results)
    assert len(population.scores(results)) == 3


@pytest.mark.slow
def test_the_same_seed_gives_the_same_population_and_another_one_does_not(make, tmp_path):
    one, other, third = make(folder=tmp_path / "a"), make(folder=tmp_path / "b"), make(folder=tmp_path / "c", seed=1)
    assert turn(one, 2) == turn(other, 2)
    assert same(without_folders(one), without_folders(other))
    assert turn(third, 2) != lines(tmp_path / "a")


def without_folders(population):
    state = population.state_dict()
    state.pop("configs")
    for one in state["members"].values():
        del one["run"]["global_random"]  # that of the process
        for part in one["run"]["parts"].values():
            part.pop("metrics", None)
    return state


@pytest.mark.slow
def test_processes_give_what_this_process_gives(make, tmp_path):
    local, processes = (
        make(folder=tmp_path / "a", num_members=2, quantile_fraction=0.5),
        make(folder=tmp_path / "b", num_members=2, quantile_fraction=0.5, backend="process"),
    )
    assert turn(local, 2) == turn(processes, 2)
    assert same(without_folders(local), without_folders(processes))
    processes.release()
    assert turn(local) == turn(processes)


def test_a_state_with_a_random_state_that_is_not_valid_changes_nothing(make):
    population = make(num_members=2, quantile_fraction=0.5)
    turn(population)
    state = population.state_dict()
    with pytest.raises(ValueError, match=r"the state's \['rng'\]\['uinteger'\] is -1"):
        population.load_state_dict({**state, "round": 7, "rng": {**state["rng"], "uinteger": -1}})
    assert same(population.state_dict(), state)


@pytest.mark.slow
def test_decisions_are_replayed_without_drawing(make, tmp_path):
    first = make(folder=tmp_path / "a")
    made = turn(first, 2)
    again = make(folder=tmp_path / "b", replay=str(tmp_path / "a/decisions.jsonl"), seed=9, metric="no such metric")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repeated = turn(again, 2)
    keys = ("round", "kind", "member", "source", "old", "new")
    assert [[one[key] for key in keys] for one in repeated] == [[one[key] for key in keys] for one in made]
    for name in first.names:
        assert same(learned(member(first, name)), learned(member(again, name)))
    with pytest.raises(PopulationError, match="is no file of decisions"):
        make(folder=tmp_path / "c", replay=str(tmp_path / "missing.jsonl"))


@pytest.mark.slow
def test_a_failed_member_is_named_left_out_and_replaced(make, tmp_path):
    population = make(breaks)
    turn(population)
    with pytest.warns(UserWarning, match="member_2 has failed, and the population goes on without it: RuntimeError: broken"):
        results = population.advance()
    assert population.live == ["member_0", "member_1", "member_3"]
    assert set(results) == {"member_0", "member_1", "member_3"}
    found = population.evolve(given(population, [3.0, 2.0, 1.0]))
    assert [(one["kind"], one["member"], one["source"]) for one in found] == [
        ("replace", "member_2", "member_0"),
        ("exploit", "member_3", "member_0"),
    ]
    assert population.failed == {}
    new = member(population, "member_2")
    assert all(map(torch.equal, new.policy.weights, member(population, "member_0").policy.weights))
    assert new.cfg.seed != 2
    assert set(population.advance()) == {*population.names}
    assert [line["kind"] for line in lines(tmp_path / "run")][1:] == ["failed", "replace", "exploit"]


class LossyHost(LocalHost):
    """A host whose first results are lost on the way to another one."""

    def __init__(self, losses):
        super().__init__()
        self.losses, self.asked = losses, 0
        self.objects["share"] = self._shared

    def _shared(self, value):
        self.asked += 1
        return Lost(value) if self.asked <= self.losses else Shared(value)


class Lost(Shared):
    @property
    def value(self):
        raise LostValueError("the machine is gone")

    @value.setter
    def value(self, value):
        pass


class TestLosses:
    @pytest.fixture
    def lossy(self, make):
        """A function that makes a population whose hosts lose so many results, after a round."""

        def made(losses, **changes):
            population = make(make_host=lambda name: LossyHost(losses), num_members=2, quantile_fraction=0.5, **changes)
            population.advance()
            return population

        return made

    def test_what_is_lost_on_the_way_is_asked_for_once_more(self, lossy):
        population = lossy(1)
        (decision,) = population.evolve(given(population, [2.0, 1.0]))
        assert population._hosts["member_0"].asked == 2
        assert "error" not in decision
        both = [member(population, name).policy.weights for name in population.names]
        assert all(map(torch.equal, *both))

    @pytest.mark.slow
    def test_if_it_is_lost_again_the_member_stays_as_it_was_and_the_log_says_so(self, lossy, make, tmp_path):
        population = lossy(2)
        target = member(population, "member_1")
        before, values = learned(target), dict(population.values["member_1"])
        with pytest.warns(
            UserWarning, match="member_1 has copied nothing from member_0, and is unchanged: the machine is gone"
        ):
            (decision,) = population.evolve(given(population, [2.0, 1.0]))
        assert same(learned(target), before)
        assert population.values["member_1"] == values
        assert (decision["kind"], decision["error"]) == ("exploit", "the machine is gone")
        assert lines(tmp_path / "run")[-1]["error"] == "the machine is gone"
        assert population.live == ["member_0", "member_1"]
        again = make(
            folder=tmp_path / "again", num_members=2, quantile_fraction=0.5, replay=str(tmp_path / "run/decisions.jsonl")
        )
        again.advance()
        assert again.evolve(given(again, [2.0, 1.0])) == []
        assert same(learned(member(again, "member_1")), before)

    @pytest.mark.slow
    def test_a_source_that_has_died_has_failed_and_the_member_stays_as_it_was(self, make):
        population = make(backend="process", num_members=2, quantile_fraction=0.5)
        population.advance()
        before = population.state_dict()["members"]["member_1"]["run"]["parts"]
        os.kill(population._hosts["member_0"].pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match="member_0 has failed|member_1 has copied nothing from member_0"):
            (decision,) = population.evolve(given(population, [2.0, 1.0]))
        assert decision["error"].startswith("WorkerDied: ")
        assert population.live == ["member_1"]
        assert same(population.state_dict()["members"]["member_1"]["run"]["parts"], before)
        population.advance()
        (decision,) = population.evolve(given(population, [1.0]))
        assert (decision["kind"], decision["member"], decision["source"]) == ("replace", "member_0", "member_1")
        assert population.live == ["member_0", "member_1"]
        population.advance()
        os.kill(population._hosts["member_1"].pid, signal.SIGKILL)  # the member that copies
        with pytest.warns(UserWarning, match="member_1 has failed"):
            (decision,) = population.evolve(given(population, [2.0, 1.0]))
        assert decision["error"].startswith("WorkerDied: ")
        assert population.live == ["member_0"]
        population.advance()

    def test_a_new_member_that_gets_nothing_has_failed(self, lossy, monkeypatch):
        population = lossy(10**9)
        with pytest.warns(UserWarning, match="member_1 has failed"):
            population._fail("member_1", RuntimeError("broken"))
        with pytest.warns(UserWarning, match="member_1 has failed|member_1 has copied nothing"):
            (decision,) = population.evolve(given(population, [1.0]))
        assert (decision["kind"], decision["error"]) == ("replace", "the machine is gone")
        assert population.failed == {"member_1": "LostValueError: the machine is gone"}


def test_members_with_different_networks_are_refused_by_name(tmp_path):
    configs = member_configs(ppo_config(), 2, RATE)
    configs[1].override({"policy.model.encoder_hidden_size_list": [32]})
    words = r"configs\[1\] has policy.model.encoder_hidden_size_list = \[32\], and configs\[0\] .*: members copy each other's"
    with pytest.raises(ValueError, match=words):
        Population(config(tmp_path), ppo, configs, RATE)


def test_a_killed_process_is_a_failed_member_unless_it_is_restarted(make, tmp_path):
    population = make(dies, backend="process", num_members=3, replace_failed=False)
    population.advance()
    with pytest.warns(UserWarning, match="member_2 has failed"):
        population.advance()
    assert population.live == ["member_0", "member_1"]
    assert population.evolve(given(population, [2.0, 1.0]))[0]["source"] == "member_0"


FAILED = "member_1 has failed, and the population goes on without it: WorkerDied"


@pytest.mark.slow
@pytest.mark.parametrize("is_released", [False, True])
def test_a_member_that_dies_between_two_rounds_has_failed_and_does_not_begin_anew(make, tmp_path, is_released):
    population = make(backend="process", num_members=3, min_members=1, replace_failed=False, burn_in=100)
    turn(population)
    os.kill(population._hosts["member_1"].pid, signal.SIGKILL)
    if is_released:
        population.release()
    with pytest.warns(UserWarning, match=FAILED):
        state = population.state_dict()
    assert sorted(state["members"]) == ["member_0", "member_2"]
    assert list(state["failed"]) == list(population.failed) == ["member_1"]
    assert lines(tmp_path / "run")[0]["kind"] == "failed"
    assert {name: result["env_step"] for name, result in population.advance().items()} == {"member_0": 64, "member_2": 64}


@pytest.mark.slow
def test_a_run_with_a_saver_goes_on_if_a_member_dies_between_two_rounds(make, tmp_path):
    population, task = make(backend="process", num_members=3, min_members=1, replace_failed=False, burn_in=100), Task()

    def kill(ctx):
        if ctx.total_step == 1:
            os.kill(population._hosts["member_1"].pid, signal.SIGKILL)

    with task.start(ctx=PopulationContext()):
        for one in (population_trainer(population), kill, population_exploiter(population)):
            task.use(one)
        task.use(CkptSaver(population, str(tmp_path / "run"), train_freq=1))
        with pytest.warns(UserWarning, match=FAILED):
            task.run(max_step=3)
    assert (population.round, list(population.failed)) == (3, ["member_1"])


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (
            lambda new: {name: np.array(1e-3) for name in new},
            TypeError,
            r"'policy.learn.learning_rate' is array\(0.001\).*ndarray",
        ),
        (lambda new: None, TypeError, "custom_explore_fn returned None: return a dict"),
        (lambda new: {"policy.learn.lr": 0.1}, ConfigError, "custom_explore_fn returned 'policy.learn.lr'"),
        (lambda new: dict.fromkeys(new, -1.0), ConfigError, "policy.learn.learning_rate.*out of range"),
    ],
    ids=["an array", "nothing", "another name", "out of range"],
)
def test_what_a_function_returns_that_explores_is_checked_before_anything_changes(make, tmp_path, returned, error, words):
    population = make(mutations={"policy.learn.learning_rate": [1e-3]}, custom=returned, num_members=2, quantile_fraction=0.5)
    population.advance()
    before = learned(member(population, "member_1"))
    with pytest.raises(error, match=words):
        population.evolve(given(population, [2.0, 1.0]))
    assert same(learned(member(population, "member_1")), before)
    assert member(population, "member_1").cfg.policy.learn.learning_rate == 1e-3
    assert not (tmp_path / "run/decisions.jsonl").exists()


def dies_once(cfg):
    """A pipeline whose member with the seed 1 is killed once, in its third iteration."""
    from ding_lite import task

    policy, marker = ppo(cfg), Path(cfg.exp_name).parent / "killed"

    @contract(stage="record")
    def fall(ctx):
        if cfg.seed == 1 and ctx.total_step == 2 and not marker.exists():
            marker.mkdir(parents=True)
            os.kill(os.getpid(), signal.SIGKILL)

    task.use(fall)
    return policy


@pytest.mark.slow
def test_a_killed_process_that_is_restarted_repeats_the_round(make, tmp_path):
    settings = {"backend": "process", "num_members": 2, "quantile_fraction": 0.5}
    killed = make(dies_once, folder=tmp_path / "a", restart=True, **settings)
    (tmp_path / "b/members/killed").mkdir(parents=True)
    unbroken = make(dies_once, folder=tmp_path / "b", **settings)
    assert turn(killed, 2) == turn(unbroken, 2)
    assert same(without_folders(killed), without_folders(unbroken))
    assert (tmp_path / "a/members/killed").exists()
    assert killed._hosts["member_1"].restarts == 1


def test_too_few_members_end_the_run_with_their_errors(make):
    population = make(breaks, num_members=3, min_members=3)
    population.advance()
    with pytest.warns(UserWarning, match="member_2 has failed"), pytest.raises(PopulationError, match="2 of 3 .*broken"):
        population.advance()


class TestRuns:
    """With a task, a saver and a logger."""

    def run(self, make, folder, rounds, resume=None, pipeline=ppo):
        population = make(pipeline, folder=folder)
        with Task().start(ctx=PopulationContext(), resume=resume) as loop:
            loop.use(population_trainer(population))
            loop.use(population_exploiter(population))
            loop.use(CkptSaver(population, folder, train_freq=1))
            loop.use(online_logger(population.cfg))
            loop.run(rounds)
            return population, loop.ctx

    @pytest.mark.slow
    def test_a_resumed_run_equals_an_unbroken_one(self, make, tmp_path):
        whole, ctx = self.run(make, tmp_path / "whole", 3)
        self.run(make, tmp_path / "cut", 2)
        more = tmp_path / "cut/decisions.jsonl"
        more.write_text(more.read_text() + json.dumps({"round": 2, "kind": "exploit", "member": "x"}) + "\n")
        resumed, again = self.run(make, tmp_path / "cut", 3, resume=tmp_path / "cut")
        assert same(without_folders(whole), without_folders(resumed))
        assert (ctx.env_step, ctx.train_iter, ctx.last_eval_value) == (again.env_step, again.train_iter, again.last_eval_value)
        one, other = lines(tmp_path / "whole"), lines(tmp_path / "cut")
        for line in (*one, *other):
            line.pop("time")
        assert one == other
        assert ctx.env_step == 3 * 2 * 16 * 4

    @pytest.mark.slow
    def test_a_replaced_member_is_resumed(self, make, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole, _ = self.run(make, tmp_path / "whole", 3, pipeline=breaks)
            self.run(make, tmp_path / "cut", 2, pipeline=breaks)
            resumed, _ = self.run(make, tmp_path / "cut", 3, resume=tmp_path / "cut", pipeline=breaks)
        assert same(without_folders(whole), without_folders(resumed))

    @pytest.mark.slow
    def test_rows_have_the_best_the_median_and_every_member(self, make, tmp_path):
        self.run(make, tmp_path / "run", 2)
        row = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
        names = {f"evaluate/score/member_{number}" for number in range(4)} | {"evaluate/best", "evaluate/median"}
        assert names <= set(row)
        assert row["evaluate/best"] == max(row[f"evaluate/score/member_{number}"] for number in range(4))
        assert "learn/member_0/policy.learn.learning_rate" in row
        assert (tmp_path / "run/ckpt/final.pt").exists()


def test_settings_that_are_not_live_and_unknown_ones_are_refused_first(make):
    with pytest.raises(ConfigError, match=r"'policy.model.activation'\] .*: the networks are made with it"):
        make(mutations={"policy.model.activation": ["relu", "tanh"]})
    dqn = [DQNConfig().override({"policy.nstep": 3})] * 4
    with pytest.raises(ConfigError, match=r"'policy.discount_factor'\] cannot be explored: .* sums with it, as policy.nstep"):
        Population(config("x"), ppo, dqn, {"policy.discount_factor": Range(0.9, 0.99)})
    with pytest.raises(ConfigError, match=r"PPOConfig has no such setting of the policy: did you mean"):
        Population(config("x"), ppo, [ppo_config()] * 4, {"policy.learn.learning_rat": Range(0.1, 0.2)})
    with pytest.raises(ConfigError, match=r"hyperparam_mutations\['lr'\] .*: it is policy.learn.learning_rate.$"):
        Population(config("x"), ppo, [ppo_config()] * 4, {"lr": Range(0.1, 0.2)})
    with pytest.raises(ConfigError, match="has no 'perturbation_interval': it is interval, the iterations"):
        PopulationConfig(perturbation_interval=4)
    with pytest.raises(TypeError, match=r"use Range\(low, high\)"):
        make(mutations={"policy.learn.learning_rate": 3})
    with pytest.raises(ValueError, match=r"a population of 1 members, and cfg.min_members = 2"):
        make(num_members=1, min_members=2)


@pytest.mark.slow
def test_a_metric_that_nothing_logs_is_a_warning_and_nobody_takes_over(make):
    population = make(metric="learn/entropi")
    with pytest.warns(UserWarning, match=r"no member has the metric 'learn/entropi' .*did you mean 'learn/entropy'"):
        assert turn(population) == []
    assert turn(make(burn_in=1)) == []


@dataclasses.dataclass
class Windy(EnvConfig):
    wind: float = 0.0


class FakeHost:
    """A host whose member is only its configuration."""

    starts, works_in_background, span = 1, False, None
    losses = 0

    def __init__(self, name):
        self.request, self.is_closed = None, False

    def submit(self, fn, *args, **options):
        self.request = fn.__name__, args
        return self.request

    def result(self, is_stopping=None, request=None):
        name, args = self.request
        if name == "_take_over" and self.losses:
            self.losses -= 1
            return None, 0, "the machine is gone"
        if name == "_take_over":
            return dict(args[-1]), 0, ""
        return "weights" if name == "_learned" else None

    def state(self, *names):
        return {"member": {}}

    def load_state(self, state):
        pass

    def begin_release(self, at_once=False):
        pass

    def release(self, is_stopping=None):
        pass

    def close(self, is_stopping=None):
        self.is_closed = True


class LossyFakeHost(FakeHost):
    losses = 1


@pytest.mark.filterwarnings("ignore:member_. has failed")
class TestReplacedMembers:
    def made(self, make, folder):
        return make(make_host=FakeHost, folder=folder)

    def fail_and_replace(self, population):
        population._fail("member_0", RuntimeError("broken"))
        population.evolve(given(population, [1.0, 2.0, 3.0]))

    def configs(self, population):
        return {name: (one.seed, one.exp_name) for name, one in population._configs.items()}

    def test_one_that_failed_again_is_replaced_after_a_resume_as_in_an_unbroken_run(self, make, tmp_path):
        whole = self.made(make, tmp_path / "run")
        self.fail_and_replace(whole)
        whole._fail("member_0", RuntimeError("broken"))
        state = copy.deepcopy(whole.state_dict())
        whole.evolve(given(whole, [1.0, 2.0, 3.0]))
        resumed = self.made(make, tmp_path / "run")
        resumed.load_state_dict(state)
        resumed.evolve(given(resumed, [1.0, 2.0, 3.0]))

        assert self.configs(whole) == self.configs(resumed)
        assert self.configs(whole)["member_0"][0] == 2 * 1_000_003

    @pytest.mark.parametrize("make_host", [FakeHost, LossyFakeHost])
    def test_one_that_does_not_fail_again_in_a_replay_is_replaced_once(self, make, tmp_path, make_host):
        first = self.made(make, tmp_path / "run")
        self.fail_and_replace(first)
        again = make(make_host=make_host, folder=tmp_path / "again", replay=str(tmp_path / "run/decisions.jsonl"))
        earlier = again._hosts["member_0"]
        again.evolve({})

        for key in ("generations", "values"):
            assert first.state_dict()[key] == again.state_dict()[key]
        assert [one.seed for one in again._configs.values()] == [1_000_003, 1, 2, 3]
        assert earlier.is_closed
        assert not again._hosts["member_0"].is_closed

    def test_a_log_whose_last_line_is_cut_is_replayed_without_it(self, make, tmp_path):
        first = self.made(make, tmp_path / "run")
        self.fail_and_replace(first)
        first.evolve(given(first, [4.0, 3.0, 2.0, 1.0]))
        *whole, _ = lines(tmp_path / "run")
        written = tmp_path / "run/decisions.jsonl"
        for cut, expected in ((20, whole), (1, lines(tmp_path / "run"))):  # of which 1 is the newline alone
            path = tmp_path / f"cut_{cut}.jsonl"
            path.write_text(written.read_text()[:-cut])
            assert make(make_host=FakeHost, folder=tmp_path / "again", replay=str(path))._replayed == expected

        path.write_text("no decision\n" + written.read_text())
        with pytest.raises(PopulationError, match="is no file of decisions"):
            make(make_host=FakeHost, folder=tmp_path / "again", replay=str(path))

    def test_the_configuration_of_a_replaced_one_keeps_its_sections_of_derived_classes(self, tmp_path):
        configs = member_configs(ppo_config(), 2)
        for one in configs:
            one.env = Windy(wind=0.5)
        made = [Population(config(tmp_path, num_members=2), ppo, configs, RATE, make_host=FakeHost) for _ in range(2)]
        made[0]._fail("member_0", RuntimeError("broken"))
        made[0].evolve({"member_1": Score("member_1", 1.0, 0, 1, 1, 1, 0.0)})
        made[1].load_state_dict(json.loads(json.dumps(made[0].state_dict())))

        assert [one._configs["member_0"].env for one in made] == [Windy(wind=0.5)] * 2
        assert made[1]._configs["member_0"] == made[0]._configs["member_0"]

    def test_in_a_folder_that_has_moved_it_writes_to_the_new_place(self, make, tmp_path):
        first = self.made(make, tmp_path / "run")
        self.fail_and_replace(first)
        moved = self.made(make, tmp_path / "moved")
        moved.load_state_dict(copy.deepcopy(first.state_dict()))

        for name, (_, folder) in self.configs(moved).items():
            assert folder == str(tmp_path / "moved/members" / name)
        assert [seed for seed, _ in self.configs(moved).values()] == [1_000_003, 1, 2, 3]

    def test_a_new_run_keeps_the_decisions_of_an_earlier_one_and_a_resumed_one_continues_its_own(self, make, tmp_path):
        folder = tmp_path / "run"
        first = self.made(make, folder)
        empty = copy.deepcopy(first.state_dict())
        self.fail_and_replace(first)
        state, before = copy.deepcopy(first.state_dict()), lines(folder)
        resumed = self.made(make, folder)
        resumed.load_state_dict(state)
        self.fail_and_replace(resumed)
        whole = lines(folder)
        assert whole[: len(before)] == before
        assert [it.name for it in folder.iterdir()] == ["decisions.jsonl"]

        new = self.made(make, folder)
        new.load_state_dict(empty)  # as saved by a run without decisions
        assert lines(folder) == whole
        self.fail_and_replace(new)
        assert [json.loads(line) for line in (folder / "decisions.1.jsonl").read_text().splitlines()] == whole
        assert len(lines(folder)) == len(before)


def test_factors_and_changes_of_members_may_be_few_but_factors_not_none():
    with pytest.raises(ConfigError, match=r"perturbation_factors = \[\] has too few values: give it at least 1"):
        PopulationConfig(perturbation_factors=[])
    assert PopulationConfig(perturbation_factors=[1.1]).perturbation_factors == [1.1]
    cfg = PBTConfig()
    assert [one.to_dict() for one in cfg.members([])] == [one.to_dict() for one in cfg.members([{}])]
    rates = [one.policy.learn.learning_rate for one in cfg.members([{"policy.learn.learning_rate": it} for it in (0.1, 0.2)])]
    assert rates == [0.1, 0.2, 0.1, 0.2]


@pytest.mark.filterwarnings("error")
def test_the_defaults_of_a_member_do_not_count_as_set():
    (member, *_) = PBTConfig().members([])
    member.env.settle("Corridor", None)

    assert (member.env.id, member.env.stop_value) == ("Corridor", None)
