"""`load_policy`: the policy of a run without its training script."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Context, Task, contract
from ding_lite.basics import CheckpointError, ConfigError, load_checkpoint, ranged_field, save_checkpoint
from ding_lite.config import BCConfig, DQNConfig, PPOConfig, PPOLSTMConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.datasets import open_dataset
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    metric_evaluator,
    multistep_trainer,
    offline_data_fetcher,
    trainer,
)
from ding_lite.policy import (
    AWACPolicy,
    BCPolicy,
    C51Policy,
    CQLPolicy,
    DDPGPolicy,
    DiscreteCQLPolicy,
    DiscreteIQLPolicy,
    DQNPolicy,
    DQNPolicyConfig,
    IMPALAPolicy,
    IQLPolicy,
    IQNPolicy,
    PPOPolicy,
    QRDQNPolicy,
    R2D2Policy,
    RainbowPolicy,
    SACPolicy,
    StateDictError,
    TD3BCPolicy,
    TD3Policy,
    build_policy,
    load_policy,
)
from ding_lite.policy.saved_policies import default_checkpoint

BOX = spaces.Box(np.array([-1, -2], np.float32), np.array([1, np.inf], np.float32))
DISCRETE = spaces.Discrete(3, start=-1)
BOUNDED = spaces.Box(np.array([-1, -2], np.float32), np.array([1, 0.1], np.float32))
NESTED = spaces.Dict(
    a=spaces.Tuple((BOX, spaces.MultiDiscrete([3, 4]))),
    b=spaces.MultiBinary((2, 2)),
    c=spaces.Box(0, 255, (3,), np.uint8),
    d=spaces.Box(-1, 1, (2,), np.float64),
)


class Mine(PPOPolicy):
    """A policy of a module that can be imported."""


@dataclasses.dataclass
class OwnLearnConfig(type(DQNPolicyConfig().learn)):
    """A section of one's own."""

    penalty: float = ranged_field(0.1, low=0)


@dataclasses.dataclass
class OwnPolicyConfig(DQNPolicyConfig):
    """A configuration of one's own."""

    widths: list[int] = dataclasses.field(default_factory=lambda: [1])
    learn: OwnLearnConfig = dataclasses.field(default_factory=OwnLearnConfig)


class OwnDQN(DQNPolicy):
    config_type = OwnPolicyConfig


class PlainDQN(DQNPolicy):
    """Takes any configuration derived from that of DQN."""


def own_config():
    cfg = OwnPolicyConfig(widths=[2, 3])
    cfg.learn.penalty = 0.25
    return cfg


def saved(policy, path):
    save_checkpoint(policy.state_dict(), path)
    return path


@pytest.mark.few
@pytest.mark.parametrize(
    ("kind", "action_space"),
    [
        *((kind, DISCRETE) for kind in (DQNPolicy, C51Policy, QRDQNPolicy, IQNPolicy, RainbowPolicy, R2D2Policy, IMPALAPolicy)),
        *((kind, BOUNDED) for kind in (DDPGPolicy, TD3Policy, SACPolicy, PPOPolicy)),
        *((kind, DISCRETE) for kind in (DiscreteCQLPolicy, DiscreteIQLPolicy)),
        *((kind, BOUNDED) for kind in (CQLPolicy, TD3BCPolicy, IQLPolicy, AWACPolicy, BCPolicy)),
        (Mine, spaces.Tuple((DISCRETE, spaces.MultiDiscrete([2, 3])))),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_every_policy_is_loaded_with_its_spaces_settings_and_weights(kind, action_space, tmp_path):
    policy = kind({"seed": 3, "lr": 0.012, "mine": [1, {"deep": "text"}]}, BOX, action_space)
    loaded = load_policy(saved(policy, tmp_path / "a.pt"))

    assert type(loaded) is kind
    assert (loaded.observation_space, loaded.action_space) == (BOX, action_space)
    assert loaded.config["lr"] == 0.012
    assert loaded.config["mine"] == [1, {"deep": "text"}]
    assert loaded.cfg.model.to_dict() == policy.cfg.model.to_dict()
    for obs in np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32):
        assert repr(loaded.predict(obs)[0]) == repr(policy.predict(obs)[0])


def test_nested_spaces_and_recurrent_policies(tmp_path):
    policy = PPOPolicy(PPOLSTMConfig().policy, NESTED, DISCRETE)
    loaded = load_policy(saved(policy, tmp_path / "a.pt"))

    assert loaded.observation_space == NESTED
    NESTED.seed(0)
    state = other = None
    for obs in [NESTED.sample() for _ in range(3)]:
        obs["a"][0][1] = 0.5  # samples of unbounded parts may be huge
        (action, state), (expected, other) = loaded.predict(obs, state), policy.predict(obs, other)
        assert action == expected


POINT = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    "pairs", [[("z", POINT), ("a", POINT)], [("m", spaces.Dict([("z", POINT), ("a", POINT)])), ("b", POINT)]]
)
def test_the_parts_of_a_dict_space_keep_their_order(pairs, tmp_path):
    """gymnasium sorts the names of a dict that is given to `spaces.Dict`."""
    space = spaces.Dict(pairs)
    policy = PPOPolicy(None, space, spaces.Dict(z=POINT, a=POINT))
    loaded = load_policy(saved(policy, tmp_path / "a.pt"))

    assert (list(loaded.observation_space), list(loaded.action_space)) == ([name for name, _ in pairs], ["z", "a"])
    space.seed(0)
    for obs in [space.sample() for _ in range(3)]:
        assert repr(loaded.predict(obs)[0]) == repr(policy.predict(obs)[0])
    with pytest.raises(
        StateDictError, match=r"its action space is Dict\(z: Box.*, a: Box.*and that of this policy is Dict\(a: "
    ):
        PPOPolicy(None, space, spaces.Dict(a=POINT, z=POINT)).load_state_dict(policy.state_dict())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run."""
    folder = tmp_path_factory.mktemp("runs") / "ppo"
    cfg = PPOConfig(exp_name=str(folder)).override({"env.n_evaluator_episode": 2, "policy.collect.n_sample": 64})
    env, evaluator_env = make_envs("CartPole-v1", 2), make_envs("CartPole-v1", 2, seed=1)
    policy = PPOPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    with Task().start(ctx=OnlineRLContext()) as task:
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env)).use(StepCollector(cfg, policy.collect_mode, env))
        task.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, folder, train_freq=1)).run(max_step=3)
    return folder, policy


def weight(policy):
    return next(iter(policy.get_weights().values())).sum().item()


def test_a_checkpoint_of_a_run_is_chosen_by_name(run):
    folder, policy = run
    final = load_policy(folder, "final")
    assert weight(final) == weight(load_policy(folder, "latest")) == weight(policy)
    assert final.train_iter == policy.train_iter > 0
    names = sorted(path.stem for path in (folder / "ckpt").glob("iteration_*.pt"))
    assert weight(load_policy(folder, names[0])) == weight(load_policy(folder / "ckpt" / f"{names[0]}.pt"))
    assert weight(load_policy(folder)) == weight(load_policy(folder, "best.pt"))
    with pytest.raises(CheckpointError, match=r"there is no checkpoint .*other\.pt.* there is .*final\.pt"):
        load_policy(folder, "other")
    with pytest.raises(CheckpointError, match="no folder"):
        load_policy(folder / "nowhere")


class TestDefaultCheckpoint:
    """Files of a run with these evaluated and counted steps; the weights are not looked at."""

    def write(self, folder, best=None, **files):
        for name, state in {**({} if best is None else {"best": {"evaluated_at": best, "model": {}}}), **files}.items():
            save_checkpoint(
                {**state, "counters": {**state.get("counters", {}), "total_step": 3}}, folder / "ckpt" / f"{name}.pt"
            )
        return default_checkpoint(folder)

    def after(self, steps, learned=None, **counters):
        counters = counters or {"env_step": 8}
        return {"counters": {"train_iter": steps, **counters}, "train_iter": steps if learned is None else learned}

    def test_it_is_the_best(self, tmp_path):
        assert self.write(tmp_path / "a", best=4, final=self.after(9)) == "best"
        assert self.write(tmp_path / "b", best=0) == self.write(tmp_path / "c") == "best"

    def test_weights_from_before_the_first_step_are_not_chosen_if_there_are_later_ones(self, tmp_path):
        assert self.write(tmp_path / "a", best=0, final=self.after(9)) == "final"
        assert self.write(tmp_path / "b", best=0, iteration_9=self.after(9)) == "latest"
        assert self.write(tmp_path / "c", best=0, final=self.after(0)) == "best"
        several = {"counters": {"train_iter": 9, "env_step": 8}, "policies": {"a": {"train_iter": 9}, "b": {"train_iter": 9}}}
        assert self.write(tmp_path / "d", best=0, final=several) == "final"

    def test_a_policy_that_had_learned_in_another_run_may_be_best_at_the_start(self, tmp_path):
        assert self.write(tmp_path, best=0, final=self.after(9, learned=109)) == "best"

    def test_so_may_one_whose_weights_were_set(self, tmp_path):
        cfg = PPOConfig(exp_name=str(tmp_path / "ppo"))
        policy = PPOPolicy(cfg.policy, BOX, DISCRETE)
        policy.set_weights({name: tensor + 1 for name, tensor in policy.get_weights().items()})
        policy.train_iter += 9
        policy.version += 9
        assert self.write(tmp_path, best=0, final=self.after(9) | policy.state_dict()) == "best"

    def run(self, folder, before=lambda policy: None, change=lambda policy: None, steps=4, resume=None):
        """A run whose first evaluation is the best, and which changes the policy in each iteration."""
        cfg = PPOConfig(exp_name=str(folder)).override({"policy.collect.n_sample": 8, "policy.learn.epoch_per_collect": 1})
        env = make_envs("CartPole-v1", 2)
        policy = PPOPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
        before(policy)

        @contract(
            reads=("train_iter",), writes=("eval_value", "eval_weights", "last_eval_iter"), uses=(policy,), stage="evaluate"
        )
        def evaluate(ctx):
            change(policy)
            ctx.eval_value, ctx.eval_weights, ctx.last_eval_iter = -float(ctx.train_iter), policy.get_weights(), ctx.train_iter

        with Task().start(ctx=OnlineRLContext(), resume=resume) as task:
            task.use(evaluate).use(StepCollector(cfg, policy.collect_mode, env))
            task.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode))
            task.use(CkptSaver(policy, folder, train_freq=1)).run(max_step=steps)
        return policy

    @pytest.mark.parametrize(
        "change", [lambda policy: policy.bump_version(), lambda policy: policy.set_weights(policy.get_weights())]
    )
    def test_changes_of_weights_in_the_run_do_not_make_the_first_ones_trained(self, change, tmp_path):
        self.run(tmp_path, change=change, steps=2)
        assert default_checkpoint(tmp_path) == "final"
        self.run(tmp_path, change=change, resume=tmp_path)
        assert default_checkpoint(tmp_path) == "final"

    def test_weights_that_were_loaded_before_the_run_may_be_best(self, tmp_path):
        trained = self.run(tmp_path / "a")
        for name, load in {
            "b": lambda policy: policy.set_weights(trained.get_weights()),
            "c": lambda policy: policy.load_state_dict(trained.state_dict()),
            "d": lambda policy: (policy.model.load_state_dict(trained.model.state_dict()), policy.bump_version()),
        }.items():
            self.run(tmp_path / name, before=load)
            assert default_checkpoint(tmp_path / name) == "best"

    @pytest.mark.parametrize("counters", [None, [1], "x", {"train_iter": "x"}, {"train_iter": None}])
    def test_counters_that_are_none_are_named(self, counters, tmp_path):
        self.write(tmp_path, best=0, final=self.after(9))
        final = tmp_path / "ckpt" / "final.pt"
        save_checkpoint({"counters": counters}, final)
        with pytest.warns(UserWarning, match="the best checkpoint is used: .*final.pt holds .* expected"):
            assert default_checkpoint(tmp_path) == "best"
        (tmp_path / "ckpt" / "best.pt").unlink()
        with pytest.raises(CheckpointError, match="final.pt holds .* expected"):
            default_checkpoint(tmp_path)
        save_checkpoint({"counters": {}, "policies": {"a": 3}}, final)
        with pytest.raises(StateDictError, match="final.pt holds 3 as the policy 'a', expected the dict of its state"):
            load_policy(tmp_path, "final")

    def test_a_damaged_file_of_the_end_is_no_reason_against_the_best(self, tmp_path):
        self.write(tmp_path, best=4, final=self.after(9))
        (tmp_path / "ckpt" / "final.pt").write_bytes(b"no checkpoint")
        with pytest.warns(UserWarning, match="the best checkpoint is used: .*final.pt"):
            assert default_checkpoint(tmp_path) == "best"
        (tmp_path / "ckpt" / "best.pt").unlink()
        with pytest.raises(CheckpointError, match="final.pt"):
            default_checkpoint(tmp_path)

    def test_it_is_the_final_one_of_an_offline_run(self, tmp_path):
        assert self.write(tmp_path / "a", best=4, final=self.after(9, train_epoch=1)) == "final"
        assert self.write(tmp_path / "b", final=self.after(9, train_epoch=1)) == "final"
        assert self.write(tmp_path / "c", best=4, iteration_9=self.after(9, train_epoch=1)) == "latest"

    def test_the_policy_of_a_short_offline_run(self, tmp_path):
        obs, ends = np.random.default_rng(0).uniform(-1, 1, (41, 3)).astype(np.float32), np.arange(40) % 10 == 9
        rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.arange(40) % 2, "reward": np.ones(40)}
        data = open_dataset({**rows, "terminated": ends, "truncated": ends & False})
        cfg = BCConfig(exp_name=str(tmp_path / "bc"))
        policy = BCPolicy(cfg.policy, spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2))
        numbers = iter((9.0, 1.0, 0.0, 0.0))
        with Task().start(ctx=OfflineRLContext()) as task:
            task.use(metric_evaluator(cfg, policy.eval_mode, data, lambda *_: next(numbers)))
            task.use(offline_data_fetcher(cfg, data, policy.learn_mode)).use(trainer(cfg, policy.learn_mode))
            task.use(CkptSaver(policy, cfg.exp_name)).run(3)
        assert weight(load_policy(cfg.exp_name)) == weight(policy) != weight(load_policy(cfg.exp_name, "best"))


def test_it_acts_in_another_program(run):
    folder, policy = run
    obs = [0.1, 0.2, 0.0, 0.0]
    program = f"from ding_lite.policy import load_policy; print(load_policy({str(folder)!r}, 'final').predict({obs})[0])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == policy.predict(obs)[0]


def test_one_of_several_policies_is_chosen_by_name(tmp_path):
    policies = {"left": PPOPolicy({"seed": 0}, BOX, DISCRETE), "right": DQNPolicy({"seed": 1}, BOX, DISCRETE)}
    with Task().start(ctx=Context()) as task:
        task.use(CkptSaver(policies, tmp_path)).run(1)

    assert weight(load_policy(tmp_path, "final", name="right")) == weight(policies["right"])
    with pytest.raises(StateDictError, match=r"holds the policies 'left', 'right': choose one, .*name='left'"):
        load_policy(tmp_path, "final")
    with pytest.raises(StateDictError, match=r"holds no policy 'other', but 'left', 'right'"):
        load_policy(tmp_path, "final", name="other")


def test_a_class_that_cannot_be_imported_is_named_and_can_be_passed(tmp_path):
    class Local(PPOPolicy):
        pass

    Derived = PPOPolicy.with_updates(stats_fn=lambda policy, batch: {})
    Built = build_policy("Built", loss_fn=lambda policy, model, dist_class, batch: model.critic(batch.obs).sum())
    for number, kind in enumerate((Local, Derived, Built)):
        policy = kind({"seed": 0}, BOX, DISCRETE)
        path = saved(policy, tmp_path / f"{number}.pt")
        with pytest.raises(
            StateDictError, match=rf"class {kind.__name__}, which was made by a function .*policy_class={kind.__name__}"
        ):
            load_policy(path)
        assert weight(load_policy(path, policy_class=kind)) == weight(policy)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("__main__:NotThere", "in the script that trained it"),
        ("no_such_module:Policy", "in the module no_such_module"),
        ("os:system", "os:system is no policy"),
        ("ding_lite.policy:DQNPolicy", "is another one"),
        (None, "saved by an earlier version"),
        (3, r"\['class'\] is 3, expected the import path of a class"),
        ("", "which cannot be imported here"),
        ("..relative:Policy", "which cannot be imported here"),
    ],
)
def test_a_place_that_gives_another_class_is_refused(place, words, tmp_path):
    state = PPOPolicy({"seed": 0}, BOX, DISCRETE).state_dict()
    state["made_with"] = {**state["made_with"], "class": place}
    save_checkpoint(state, tmp_path / "a.pt")
    with pytest.raises(StateDictError, match=words):
        load_policy(tmp_path / "a.pt")


class Counting(DQNPolicy):
    """Has an entry of its own in the state."""

    n_updates = 0

    def state_dict(self):
        return {**super().state_dict(), "n_updates": self.n_updates}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.n_updates = state["n_updates"]


def test_the_best_weights_of_a_class_with_a_state_of_its_own_are_loaded(tmp_path):
    cfg = DQNConfig(exp_name=str(tmp_path)).override({"env.n_evaluator_episode": 1})
    envs = make_envs("CartPole-v1", 1, seed=0)
    policy = Counting(cfg.policy, envs.single_observation_space, envs.single_action_space)
    policy.n_updates = 7
    with Task().start(ctx=OnlineRLContext()) as task:
        task.use(interaction_evaluator(cfg, policy.eval_mode, envs))
        task.use(CkptSaver(policy, cfg.exp_name))
        task.run(max_step=1)
    best = load_checkpoint(tmp_path / "ckpt" / "best.pt")

    assert "n_updates" not in best
    assert load_policy(tmp_path, "best").n_updates == 0  # as in a new one
    assert load_policy(tmp_path, "final").n_updates == 7
    policy.load_state_dict(best)
    assert policy.n_updates == 7  # as it was


def test_files_without_a_policy_and_settings_that_are_objects_are_refused(tmp_path):
    save_checkpoint({"model": torch.nn.Linear(1, 1).state_dict()}, tmp_path / "module.pt")
    with pytest.raises(StateDictError, match="holds no policy, only 'model'"):
        load_policy(tmp_path / "module.pt")
    policy = DQNPolicy({"seed": 0, "made_of": object()}, BOX, DISCRETE)
    with pytest.raises(StateDictError, match=r"the setting made_of was an object.*call policy\.load_state_dict"):
        load_policy(saved(policy, tmp_path / "object.pt"))


def test_a_policy_of_another_device_is_loaded_on_the_cpu(tmp_path):
    cfg = DQNConfig().policy
    policy = DQNPolicy(cfg, BOX, DISCRETE)
    state = policy.state_dict()
    state["made_with"]["config"]["device"] = "cuda"
    save_checkpoint(state, tmp_path / "a.pt")
    assert load_policy(tmp_path / "a.pt").device.type == "cpu"


@pytest.mark.parametrize("kind", [OwnDQN, PlainDQN, DQNPolicy])
@pytest.mark.parametrize("given", [False, True])
def test_a_configuration_of_ones_own_is_loaded_too(kind, given, tmp_path):
    path = saved(kind(own_config(), BOX, DISCRETE), tmp_path / "a.pt")
    loaded = load_policy(path, policy_class=kind if given else None)

    assert type(loaded) is kind
    assert type(loaded.cfg) is OwnPolicyConfig
    assert (loaded.cfg.widths, loaded.cfg.learn.penalty) == ([2, 3], 0.25)
    assert {**loaded.made_with, "class": 0} == {**kind(own_config(), BOX, DISCRETE).made_with, "class": 0}


def test_a_configuration_that_cannot_be_imported_is_named_with_the_fix(tmp_path):
    @dataclasses.dataclass
    class Local(DQNPolicyConfig):
        penalty: float = 0.1

    path = saved(PlainDQN(Local(penalty=0.5), BOX, DISCRETE), tmp_path / "a.pt")
    with pytest.raises(
        StateDictError, match=r"configuration of the class Local, .*set config_type = Local in a class derived from"
    ):
        load_policy(path)

    class Fixed(PlainDQN):
        config_type = Local

    assert load_policy(path, policy_class=Fixed).cfg.penalty == 0.5


def test_with_a_policy_class_no_module_is_imported_for_the_configuration(tmp_path):
    state = PlainDQN(own_config(), BOX, DISCRETE).state_dict()
    state["made_with"]["config_class"] = "antigravity:Own"
    save_checkpoint(state, tmp_path / "a.pt")
    with pytest.raises(StateDictError, match="set config_type = Own"):
        load_policy(tmp_path / "a.pt", policy_class=PlainDQN)
    assert "antigravity" not in sys.modules

    state["made_with"]["config_class"] = "subprocess:Popen"
    save_checkpoint(state, tmp_path / "a.pt")
    with pytest.raises(StateDictError, match="names subprocess:Popen as the class of the configuration"):
        load_policy(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("name", "meant"), [("width", "widths"), ("penaltyy", "learn.penalty"), ("learn.penlty", "penalty"), ("nsteps", "nstep")]
)
def test_a_misspelt_setting_of_a_configuration_of_ones_own_is_refused(name, meant):
    with pytest.raises(ConfigError, match=f"{name.rpartition('.')[2]}.: did you mean '{meant}'"):
        OwnDQN({name: 1}, BOX, DISCRETE)
    assert OwnDQN({"widths": [4], "unlike_any": 3}, BOX, DISCRETE).config["unlike_any"] == 3


def test_a_configuration_without_the_decorator_is_named():
    class Undecorated(DQNPolicyConfig):
        penalty: float = 0.1

    with pytest.raises(ConfigError, match=r"Undecorated declares 'penalty', but is no dataclass: write @dataclasses.dataclass"):
        Undecorated().penalty = 3
