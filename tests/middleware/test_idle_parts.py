"""Parts of a pipeline without effect cause a warning: settings, policies and batches that nothing learns from."""

import warnings

import pytest

from ding_lite import contract, task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    inferencer,
    interaction_evaluator,
    nstep_reward_enhancer,
    offpolicy_data_fetcher,
    rolloutor,
    trainer,
)
from ding_lite.policy import DQNPolicy, Policy

IDLE = "no learner of this run trains"


def small(tmp_path):
    cfg = DQNConfig().override({"exp_name": str(tmp_path / "run"), "env.n_evaluator_episode": 2, "env.evaluator_env_num": 2})
    cfg.policy.learn.learning_starts, cfg.policy.learn.update_per_collect = 0, 2
    return cfg


def run(cfg, make_parts, policies=1):
    """Run two iterations of DQN; `make_parts` returns the middleware behind the pusher. Returns the warnings."""
    envs = make_envs(cfg.env.id, 2, seed=0)
    made = [DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space) for _ in range(policies)]
    buffer_ = ReplayBuffer(1000, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with task.start(ctx=OnlineRLContext()):
            task.use(eps_greedy_handler(cfg))
            task.use(StepCollector(cfg, made[0].collect_mode, envs))
            task.use(data_pusher(cfg, buffer_))
            for part in make_parts(cfg, buffer_, *made):
                task.use(part)
            task.run(max_step=2)
    return [str(one.message) for one in caught]


def learner(cfg, buffer_, policy):
    return OffPolicyLearner(cfg, policy.learn_mode, buffer_)


def evaluator(cfg, policy):
    return interaction_evaluator(cfg, policy.eval_mode, make_envs(cfg.env.id, 2, seed=1))


@pytest.mark.parametrize("which", [0, 1])
def test_an_evaluated_policy_that_does_not_learn_is_named(tmp_path, which):
    found = run(small(tmp_path), lambda cfg, b, *two: [learner(cfg, b, two[0]), evaluator(cfg, two[which])], policies=2)

    named = [text for text in found if IDLE in text]
    assert len(named) == which
    assert all(text.startswith("interaction_evaluator evaluates the policy") for text in named)


@pytest.mark.parametrize(("saved", "count"), [(lambda one, two: two, 1), (lambda one, two: {"a": one, "b": two}, 0)])
def test_a_saved_policy_that_does_not_learn_is_named(tmp_path, saved, count):
    found = run(
        small(tmp_path), lambda cfg, b, *two: [learner(cfg, b, two[0]), CkptSaver(saved(*two), cfg.exp_name)], policies=2
    )

    assert [text.partition(" that")[0] for text in found if IDLE in text] == ["CkptSaver saves the policy"] * count


def test_a_function_without_a_contract_may_train_any_policy(tmp_path):
    def parts(cfg, buffer_, one, two):
        def imitate(ctx):
            two.learn_mode.forward(buffer_.sample(4))

        return [learner(cfg, buffer_, one), imitate, CkptSaver(two, cfg.exp_name), evaluator(cfg, two)]

    assert not run(small(tmp_path), parts, policies=2)


def test_a_policy_with_the_average_weights_of_one_that_learns_is_not_named(tmp_path):
    def parts(cfg, buffer_, one, average):
        @contract(reads=("train_iter",), uses=(one, average), stage="learn")
        def follow(ctx):
            own, new = average.get_weights(), one.get_weights()
            average.set_weights({name: 0.9 * own[name] + 0.1 * new[name] for name in own})

        return [learner(cfg, buffer_, one), follow, evaluator(cfg, average), CkptSaver(average, cfg.exp_name)]

    assert not run(small(tmp_path), parts, policies=2)


def test_a_whole_pipeline_warns_of_nothing(tmp_path):
    assert not run(
        small(tmp_path), lambda cfg, b, one: [learner(cfg, b, one), evaluator(cfg, one), CkptSaver(one, cfg.exp_name)]
    )


def test_without_a_learner_nothing_is_said_about_policies(tmp_path):
    assert not run(small(tmp_path), lambda cfg, b, one: [evaluator(cfg, one), CkptSaver(one, cfg.exp_name)])


def step_collector(cfg, modes, envs):
    return [StepCollector(cfg, mode, envs) for mode in modes]


def inferencers(cfg, modes, envs):
    return [part for mode in modes for part in (inferencer(0, mode, envs), rolloutor(mode, envs))]


class Rule(Policy):
    """A policy that cannot learn."""

    def compute_actions(self, obs, state=None, **kwargs):
        return (obs[:, 2] > 0).long(), state, {}


def collected_with(tmp_path, make, *which, learns=True, trained=0, plain=False, async_mode=False):
    """The warnings about idle policies of a run that trains its own policy and collects with these."""
    cfg, envs = small(tmp_path), make_envs("CartPole-v1", 2, seed=0)
    spaces = envs.single_observation_space, envs.single_action_space
    made = {name: DQNPolicy(cfg.policy, *spaces) for name in ("own", "other", "third")} | {"rule": Rule(None, *spaces)}
    made["other"].version = trained
    buffer_ = ReplayBuffer(1000, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with task.start(ctx=OnlineRLContext(), async_mode=async_mode):
            task.use(eps_greedy_handler(cfg))
            for part in make(cfg, [made[name].collect_mode for name in which], envs):
                task.use(part)
            task.use(data_pusher(cfg, buffer_))
            if learns:
                task.use(learner(cfg, buffer_, made["own"]))
            if plain:
                task.use(lambda ctx: None)
            task.run(max_step=2)
            task.run(max_step=2)
    return [str(one.message) for one in caught if IDLE in str(one.message)]


@pytest.mark.few
@pytest.mark.parametrize("async_mode", [False, True])
@pytest.mark.parametrize(("make", "name"), [(step_collector, "StepCollector"), (inferencers, "inferencer")])
def test_a_collecting_policy_that_does_not_learn_is_named_once(tmp_path, make, name, async_mode):
    (text,) = collected_with(tmp_path, make, "other", async_mode=async_mode)

    assert text.startswith(f"{name} collects with a policy that no learner of this run trains")
    assert "the DQNPolicy that learns never acts" in text


def test_several_collectors_of_other_policies_are_one_warning(tmp_path):
    assert len(collected_with(tmp_path, step_collector, "other", "third")) == 1


@pytest.mark.few
@pytest.mark.parametrize(
    ("which", "settings"),
    [
        (["own"], {}),
        (["other", "own"], {}),
        (["own", "other"], {}),
        (["rule"], {}),
        (["other"], {"trained": 7}),
        (["other"], {"learns": False}),
        (["other"], {"plain": True}),
    ],
    ids=["own", "demonstrations", "demonstrations later", "a rule", "an expert", "no learner", "a function may train it"],
)
def test_other_collectors_are_fine(tmp_path, which, settings):
    assert not collected_with(tmp_path, step_collector, *which, **settings)


@pytest.mark.parametrize("learns", [True, False])
def test_a_batch_that_nothing_reads_is_named(tmp_path, learns):
    def parts(cfg, buffer_, policy):
        fetcher = offpolicy_data_fetcher(cfg, buffer_)
        return [fetcher, *([trainer(cfg, policy.learn_mode)] if learns else [])]

    found = [text for text in run(small(tmp_path), parts) if "sets ctx.train_data" in text]

    assert len(found) == (not learns)
    assert all("offpolicy_data_fetcher" in text and "add a learner such as trainer" in text for text in found)


def test_a_function_without_a_contract_may_read_the_batch(tmp_path):
    assert not run(small(tmp_path), lambda cfg, b, one: [offpolicy_data_fetcher(cfg, b), lambda ctx: None])


def test_settings_changed_after_the_policy_was_made_are_named(tmp_path):
    cfg = small(tmp_path)

    def parts(cfg, buffer_, policy):
        other = small(tmp_path)
        other.policy.learn.learning_rate, other.policy.learn.batch_size = 0.5, 7
        other.policy.discount_factor, other.policy.seed = 0.5, 3
        other.policy.model.encoder_hidden_size_list = [3]
        return [learner(other, buffer_, policy)]

    (text,) = (one for one in run(cfg, parts) if "without effect" in one)
    assert "policy.learn.learning_rate = 0.5 (the policy has 0.001)" in text
    assert "encoder_hidden_size_list = [3]" in text
    assert "policy.discount_factor = 0.5 (the policy has 0." in text
    assert "batch_size" not in text
    assert "seed" not in text


def test_a_default_configuration_beside_a_policy_with_settings_is_fine(tmp_path):
    cfg = small(tmp_path)
    cfg.policy.learn.learning_rate = 0.5

    assert not [one for one in run(cfg, lambda cfg, b, p: [learner(small(tmp_path), b, p)]) if "without effect" in one]


def test_settings_of_the_policy_alone_that_only_middleware_reads_are_named(tmp_path):
    def parts(cfg, buffer_, policy):
        settings = {"n_step": 3, "learn": {"batch_size": 7}, "collect": {"n_sample": 3}, "lr": 0.5}
        other = DQNPolicy(settings, policy.observation_space, policy.action_space)
        first = learner(cfg, buffer_, other)
        cfg.policy = other.cfg
        return [first, learner(cfg, buffer_, other)]

    (text,) = (one for one in run(small(tmp_path), parts) if "does not use settings" in one)
    assert text.startswith("OffPolicyLearner does not use settings that the policy was made with")
    assert "policy.learn.batch_size = 7 (OffPolicyLearner has 64)" in text
    assert "policy.nstep = 3 (" in text
    assert "learning_rate" not in text
    assert "n_sample" not in text  # which the collector reads


LATER = "made before its configuration was changed"
CHANGES = {
    "learning rate": {"learn.learning_rate": 0.5},
    "network": {"model.encoder_hidden_size_list": [3]},
    "optimizer": {"learn.optimizer": "rmsprop"},
    "seed": {"seed": 77},
}


@pytest.mark.few
@pytest.mark.parametrize("values", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", ["before the learner", "after it"])
@pytest.mark.parametrize("kind", [OffPolicyLearner, trainer])
def test_settings_that_the_policys_own_configuration_got_later_are_named(tmp_path, values, place, kind):
    cfg = small(tmp_path)

    def parts(cfg, buffer_, policy):
        if place == "before the learner":
            cfg.policy.override(values)
        if kind is OffPolicyLearner:
            yield learner(cfg, buffer_, policy)
        else:
            yield offpolicy_data_fetcher(cfg, buffer_)
            yield trainer(cfg, policy.learn_mode)
        cfg.policy.override(values)

    (text,) = (one for one in run(cfg, parts) if LATER in one)
    ((name, value),) = values.items()
    assert text.startswith(f"{kind.__name__} trains a policy")
    assert f"policy.{name} = {value!r} (made with " in text
    assert text.endswith("Make the policy after the change, or change live settings by policy.reset_config.")


FOLLOWED = {
    "read in each step": {"discount_factor": 0.5, "double": False, "learn.grad_clip_norm": 0.1, "learn.batch_size": 7},
    "read by middleware": {"other.eps.end": 0.5, "eval.evaluator.eval_freq": 7},
}


@pytest.mark.parametrize("values", FOLLOWED.values(), ids=FOLLOWED)
def test_settings_that_a_policy_follows_are_not_named(tmp_path, values):
    def parts(cfg, buffer_, policy):
        cfg.policy.override(values)
        return [learner(cfg, buffer_, policy)]

    assert not [text for text in run(small(tmp_path), parts) if LATER in text]


def test_a_setting_that_a_middleware_reads_once_is_named_if_it_changes_later(tmp_path):
    def parts(cfg, buffer_, policy):
        yield nstep_reward_enhancer(cfg)
        cfg.policy.collect.n_sample, cfg.policy.nstep = 8, 3

    found = [text for text in run(small(tmp_path), parts) if LATER in text]
    assert [text.partition(" was")[0] for text in found] == ["StepCollector", "nstep_reward_enhancer"]
    assert "does not follow the change: policy.collect.n_sample = 8 (made with" in found[0]
    assert "policy.nstep = 3 (made with 1). Make nstep_reward_enhancer after the change, or give" in found[1]


def test_reset_config_is_the_fix_also_after_the_change(tmp_path):
    found = []

    def parts(cfg, buffer_, policy):
        cfg.policy.learn.learning_rate = 0.5
        assert policy.reset_config({"lr": 0.5}) == {"learn.learning_rate": 0.001}
        found.append(policy)
        return [learner(cfg, buffer_, policy)]

    assert not [text for text in run(small(tmp_path), parts) if LATER in text]
    assert found[0].optimizer.param_groups[0]["lr"] == 0.5


def test_a_state_says_with_what_the_policy_was_made_so_that_it_can_be_loaded(tmp_path):
    cfg, envs = small(tmp_path), make_envs("CartPole-v1", 1, seed=0)
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    cfg.policy.model.encoder_hidden_size_list = [3]

    config = policy.state_dict()["made_with"]["config"]

    assert config["model"]["encoder_hidden_size_list"] == [128, 128]
    again = DQNPolicy(type(cfg.policy).from_dict(config), envs.single_observation_space, envs.single_action_space)
    again.load_state_dict(policy.state_dict())
