"""Populations whose members live on a Ray cluster."""

import os
import signal

import cloudpickle
import member_pipelines
import pytest
from member_pipelines import ppo, ppo_config, same

from ding_lite.config import PopulationConfig
from ding_lite.contexts import PopulationContext
from ding_lite.distributed import Population, Range, member_configs, populations
from ding_lite.distributed.references import RemoteValue
from ding_lite.engine import Task
from ding_lite.middleware import population_exploiter, population_trainer

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("cluster")]
RATE = {"policy.learn.learning_rate": Range(1e-4, 1e-2, log=True)}


def trained(folder, kill=False, **changes):
    """The members' states after two rounds, and the settings that were explored."""
    settings = {"exp_name": str(folder), "interval": 2, "num_members": 2, "quantile_fraction": 0.5, "metric": "learn/entropy"}
    cfg = PopulationConfig().override({**settings, **changes})
    population = Population(cfg, ppo, member_configs(ppo_config(), 2, RATE), RATE)
    loop = Task()
    with loop.start(ctx=PopulationContext()):
        loop.use(population_trainer(population))
        loop.use(population_exploiter(population))
        loop.run(1, final=False)
        if kill:
            os.kill(population._hosts["member_0"].pid, signal.SIGKILL)
        loop.run(2)
    members = population.state_dict()["members"]
    population.close()
    learned = {name: state["run"]["parts"] for name, state in members.items()}
    policies = {name: [part["model"] for part in parts.values() if "model" in part] for name, parts in learned.items()}
    return policies, population.values


def test_a_population_on_the_cluster_is_that_of_this_process_also_after_a_death(tmp_path):
    cloudpickle.register_pickle_by_value(member_pipelines)
    policies, values = trained(tmp_path / "local")
    found, found_values = trained(tmp_path / "ray", kill=True, backend="ray", restart=True)

    assert len(policies["member_0"]) == 1
    assert same(found, policies)
    assert found_values == values


def test_what_a_member_has_learned_is_passed_on_by_reference_and_lost_with_its_worker(tmp_path):
    settings = {"exp_name": str(tmp_path), "interval": 2, "num_members": 2, "quantile_fraction": 0.5, "backend": "ray"}
    cfg = PopulationConfig().override({**settings, "metric": "learn/entropy"})
    cloudpickle.register_pickle_by_value(member_pipelines)
    population = Population(cfg, ppo, member_configs(ppo_config(), 2, RATE), RATE)
    try:
        scores = population.scores(population.advance())
        source, target = sorted(scores, key=lambda name: -scores[name].value)
        learned = population._ask(source, populations._learned)
        assert type(learned) is RemoteValue
        os.kill(population._hosts[source].pid, signal.SIGKILL)
        while "the object store has lost" not in (error := population._ask(target, populations._take_over, learned, {})[2]):
            assert error == ""  # the cluster has not noticed yet
        with pytest.warns(UserWarning, match=f"{source} has failed|{target} has copied nothing from {source}"):
            (decision,) = population.evolve(scores)
        assert decision["error"].startswith("WorkerDied: ")
        assert population.live == [target]
        assert population.state_dict()["members"].keys() == {target}
    finally:
        population.close()
