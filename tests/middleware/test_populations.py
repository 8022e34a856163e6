"""The middleware of populations, with a population that only counts: what stands in the context and in the rows."""

import json

import pytest

from ding_lite import Task
from ding_lite.config import PopulationConfig
from ding_lite.contexts import PopulationContext
from ding_lite.distributed import Score
from ding_lite.middleware import CkptSaver, online_logger, population_exploiter, population_trainer


class Counting:
    """Members whose counters grow by 100 in a round. In round 2 the first one is replaced by a new one, or fails before."""

    sign, values, is_finished = 1, {}, False

    def __init__(self, count=4, is_absent=False):
        self.round, self.steps, self.is_absent = 0, [0] * count, is_absent

    def advance(self):
        if self.round == 2:
            self.steps[0] = 0
        live = [number for number in range(len(self.steps)) if not (self.is_absent and self.round == 1 and number == 0)]
        for number in live:
            self.steps[number] += 100
        return {
            f"member_{number}": {"env_step": self.steps[number], "train_iter": self.steps[number] // 10, "eval_value": number}
            for number in live
        }

    def scores(self, results):
        return {name: Score(name, float(it["eval_value"]), self.round, 0, 0, 0, 0.0) for name, it in results.items()}

    def evolve(self, scores):
        self.round += 1
        return []

    def state_dict(self):
        return {"round": self.round, "steps": list(self.steps)}

    def load_state_dict(self, state):
        self.round, self.steps = state["round"], list(state["steps"])


def run(folder, population, rounds=4, resume=None):
    cfg = PopulationConfig(exp_name=str(folder)).override({"log.show_every_s": 1e9})
    task = Task()
    with task.start(ctx=PopulationContext(), resume=resume):
        task.use(population_trainer(population)).use(population_exploiter(population))
        task.use(CkptSaver(population, folder, train_freq=100)).use(online_logger(cfg))
        task.run(rounds)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("is_absent", "steps"), [(False, [400, 800, 1200, 1600]), (True, [400, 700, 1100, 1500])])
def test_the_steps_of_a_new_member_count_on_from_those_of_the_one_that_it_replaces(tmp_path, is_absent, steps):
    rows = run(tmp_path / "run", Counting(is_absent=is_absent))

    assert [row["env_step"] for row in rows] == steps
    assert [row["train_iter"] for row in rows] == [step // 10 for step in steps]


def test_a_resumed_population_counts_the_steps_of_an_unbroken_one(tmp_path):
    run(tmp_path / "run", Counting(is_absent=True), 2)
    rows = run(tmp_path / "run", Counting(is_absent=True), 4, resume=tmp_path / "run")

    assert [row["env_step"] for row in rows] == [400, 700, 1100, 1500]


@pytest.mark.parametrize(("count", "median"), [(1, 0.0), (3, 1.0), (4, 1.5)])
def test_the_median_is_that_of_all_scores(tmp_path, count, median):
    assert run(tmp_path / "run", Counting(count), 1)[-1]["evaluate/median"] == median


def test_a_finished_population_can_be_resumed(tmp_path, capsys):
    rows = run(tmp_path / "run", Counting())

    assert run(tmp_path / "run", Counting(), resume=tmp_path / "run") == rows
    assert "ended after 1,600 environment steps" in capsys.readouterr().out.splitlines()[-1]
