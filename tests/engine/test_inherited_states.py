"""What classes of a script add to a state_dict that they inherit, and objects without one that ding_lite's middleware use."""

import functools
import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import OnlineRLContext, Task, contract
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.data import ReplayBuffer, Trajectories, with_leaves
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    gae_estimator,
    multistep_trainer,
    offpolicy_data_fetcher,
    reward_estimator,
    trainer,
)
from ding_lite.nn import RunningNorm
from ding_lite.policy import DQNPolicy, PPOPolicy


class Coin(ReplayBuffer):
    """A buffer with a state of its own, and the library's state_dict."""

    def __init__(self, size=8):
        super().__init__(size, seed=0)
        self.coin, self.limit = np.random.default_rng(0), 3

    def push(self, *args, **kwargs):
        self.toss()
        return super().push(*args, **kwargs)

    def toss(self):
        self.coin.random()


class SavedCoin(Coin):
    def state_dict(self):
        return {**super().state_dict(), "coin": self.coin.bit_generator.state}

    def load_state_dict(self, state):
        self.coin.bit_generator.state = state["coin"]
        super().load_state_dict({name: value for name, value in state.items() if name != "coin"})


class Renamed(Coin):
    def toss(self):
        """Nothing."""


class Sampling(Coin):
    """Its own way to draw, with the generator of the base class, which is saved."""

    def toss(self):
        self.coin.random()
        if len(self):
            self.draw(1)

    def draw(self, *args, **kwargs):
        self.rng.random()
        return super().draw(*args, **kwargs)


class Below(SavedCoin):
    """Adds to a state_dict that the script has written."""

    def __init__(self, size=8):
        super().__init__(size)
        self.second = np.random.default_rng(1)

    def toss(self):
        super().toss()
        self.second.random()


class Forgetting(Below):
    """Has a state_dict of its own, without what Below adds."""

    def state_dict(self):
        return {**super().state_dict(), "limit": self.limit}

    def load_state_dict(self, state):
        super().load_state_dict({name: value for name, value in state.items() if name != "limit"})


@pytest.mark.parametrize(("kind", "words"), [(Below, "which its inherited state_dict"), (Forgetting, "and its state_dict")])
def test_so_may_one_that_is_derived_from_a_class_of_the_script(kind, words, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext()) as loop:
            buffer_ = kind()
            loop.use(contract(uses=(buffer_,))(lambda ctx: buffer_.toss()))
            loop.use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1000)).run(4)
    (found,) = [str(it.message) for it in caught if "remembers" in str(it.message)]
    assert f"{kind.__name__} remembers something from iteration to iteration (second), {words}" in found


@pytest.mark.parametrize(("kind", "is_lost"), [(Coin, True), (Sampling, True), (SavedCoin, False), (Renamed, False)])
def test_a_class_that_is_derived_from_one_of_the_library_may_have_a_state_of_its_own(kind, is_lost, tmp_path):
    rows = {"obs": np.zeros((1, 2), np.float32), "reward": np.zeros(1, np.float32)}

    def collected(ctx):
        ctx.trajectories = Trajectories({name: column[:, None] for name, column in rows.items()})

    buffer_ = kind()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(contract(writes=("trajectories",), stage="collect")(collected)).use(data_pusher(None, buffer_))
            loop.use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1000)).run(4)
    found = [str(it.message) for it in caught if "remembers" in str(it.message)]
    assert len(found) == is_lost
    words = f"{kind.__name__} remembers something from iteration to iteration (coin), which its inherited state_dict"
    assert all(words in it for it in found)


class Turns(torch.nn.Linear):
    """A network that counts, in an attribute."""

    turns = 0

    def forward(self, x):
        self.turns += 1
        return super().forward(x)


class TurnsInBuffer(torch.nn.Linear):
    def __init__(self, *sizes, persistent=True):
        super().__init__(*sizes)
        self.register_buffer("turns", torch.zeros(()), persistent=persistent)

    def forward(self, x):
        self.turns += 1
        return super().forward(x)


class Counting(PPOPolicy):
    start = 0  # also the name of things in the code of the library

    def loss(self, batch):
        self.start += 1
        return super().loss(batch)


class Weighted(Counting):
    def get_weights(self):
        return {"networks": super().get_weights(), "start": self.start}

    def set_weights(self, weights):
        super().set_weights(weights["networks"])
        self.start = weights["start"]


class Networks(PPOPolicy):
    """With networks and an object of its own, which are saved."""

    def before_init(self):
        self.own = {"a": torch.nn.Linear(2, 1), "b": torch.nn.Linear(2, 1)}

    def after_init(self):
        super().after_init()
        self.filter = RunningNorm((1,))
        self.attach("filter", self.filter)

    def loss(self, batch):
        with torch.no_grad():
            self.own["a"].weight += 1
            self.own["b"].weight += 1
            self.filter.update(batch.reward.reshape(-1, 1))
        return super().loss(batch)


class Mixed(PPOPolicy):
    """With a network in a list with other things, which is not saved, although its optimizer is."""

    def after_init(self):
        super().after_init()
        self.mixed = [torch.nn.Linear(2, 1), 0.5]
        self.mixed_optimizer = torch.optim.SGD(self.mixed[0].parameters(), lr=0.1)

    def loss(self, batch):
        self.mixed[0](torch.ones(2)).sum().backward()
        self.mixed_optimizer.step()
        return super().loss(batch)


class Features(torch.nn.Linear):
    """Keeps a tensor for other methods until the next step."""

    def forward(self, x):
        self.features = super().forward(x)
        return self.features


class Statistics(PPOPolicy):
    """Keeps tensors for other hooks, as in RLlib: those that were computed from weights belong to one gradient step."""

    def after_init(self):
        super().after_init()
        self.net, self.target = Features(2, 1), Features(2, 1)

    def loss(self, batch):
        loss, stats = super().loss(batch)
        with torch.no_grad():
            self.target(torch.ones(2))
        self.own_loss = loss + self.net(torch.ones(2)).sum() + self.target.features.sum()
        return self.own_loss, stats

    def after_step(self):
        super().after_step()
        assert float(self.own_loss.detach()) == float(self.own_loss)


class WithState(PPOPolicy):
    turns = 0

    def state_dict(self):
        return {**super().state_dict(), "turns": self.turns}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.turns = state["turns"]


class BelowState(WithState):
    count = 0

    def loss(self, batch):
        self.turns += 1
        self.count += 1
        return super().loss(batch)


class NetWithState(Turns):
    def state_dict(self, *args, **kwargs):
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return super().load_state_dict(*args, **kwargs)


class Inner(PPOPolicy):
    def __init__(self, *args, net, **kwargs):
        super().__init__(*args, **kwargs)
        self.net = net

    def loss(self, batch):
        self.net(torch.zeros(1, 2))
        return super().loss(batch)


class Scaling(StepCollector):
    values = 1

    def __call__(self, ctx):
        super().__call__(ctx)
        self.values += 1


DERIVED = {
    "a policy": ({"policy": Counting}, "Counting", "start"),
    "one whose objects are saved": ({"policy": Networks}, None, None),
    "one that keeps tensors with a graph": ({"policy": Statistics}, None, None),
    "one whose weights have it": ({"policy": Weighted}, None, None),
    "a network": ({"policy": functools.partial(Inner, net=Turns(2, 1))}, "Turns", "turns"),
    "a network whose buffer is saved": ({"policy": functools.partial(Inner, net=TurnsInBuffer(2, 1))}, None, None),
    "a network with a buffer that is not": (
        {"policy": functools.partial(Inner, net=TurnsInBuffer(2, 1, persistent=False))},
        "TurnsInBuffer",
        "turns",
    ),
    "a network in a mixed list with an optimizer": ({"policy": Mixed}, "Mixed", "mixed[0].bias, mixed[0].weight"),
    "a policy below one with a state_dict of its own": ({"policy": BelowState}, "BelowState", "count"),
    "one with a state_dict of its own": ({"policy": WithState}, None, None),
    "a middleware": ({"collector": Scaling}, "Scaling", "values"),
    "plain ones": ({"policy": type("Plain", (PPOPolicy,), {}), "collector": type("Own", (StepCollector,), {})}, None, None),
}


@pytest.mark.few
@pytest.mark.parametrize("case", DERIVED)
def test_what_classes_of_the_script_add_to_a_state_that_they_inherit_is_named(case, tmp_path):
    parts, name, place = DERIVED[case]
    cfg = PPOConfig().override({"policy.collect.n_sample": 16, "policy.model.encoder_hidden_size_list": [8]})
    envs = make_envs("CartPole-v1", 2, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = parts.get("policy", PPOPolicy)(cfg.policy, envs.single_observation_space, envs.single_action_space)
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(parts.get("collector", StepCollector)(cfg, policy.collect_mode, envs))
            loop.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode))
            loop.use(CkptSaver(policy, tmp_path, train_freq=1000)).run(3)
    found = [str(it.message) for it in caught if "remembers" in str(it.message)]
    assert len(found) == (name is not None), found
    assert all(f"{name} remembers something from iteration to iteration ({place}), which its inherited" in it for it in found)


def test_a_network_whose_own_state_dict_forgets_something_is_named(tmp_path):
    net = NetWithState(2, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(contract(uses=(net,))(lambda ctx: net(torch.zeros(1, 2))))
            loop.use(CkptSaver(torch.nn.Linear(1, 1), tmp_path, train_freq=1000)).run(3)
    (found,) = [str(it.message) for it in caught if "remembers" in str(it.message)]
    assert "NetWithState remembers something from iteration to iteration (turns), and its state_dict does not have it" in found


class Growing:
    """A reward model that remembers, and that holds what others save."""

    def __init__(self, policy):
        self.policy, self.turns = policy, 0

    def estimate(self, batch):
        self.turns += self.step
        return with_leaves(batch, reward=batch.reward * (1 + self.turns))

    step = 1


@pytest.mark.parametrize(("kind", "is_lost"), [(Growing, True), (type("Constant", (Growing,), {"step": 0}), False)])
def test_so_is_a_reward_model_of_a_learner(kind, is_lost, tmp_path):
    cfg = DQNConfig().override({"policy.learn.batch_size": 4, "policy.learn.learning_starts": 4})
    policy = DQNPolicy(cfg.policy, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))
    buffer_ = filled_buffer()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_, reward_model=kind(policy)))
            loop.use(CkptSaver(policy, tmp_path, train_freq=1000)).run(3)
    found = [str(it.message) for it in caught if "remembers" in str(it.message)]
    assert len(found) == is_lost, found
    assert all(f"{kind.__name__} remembers something from iteration to iteration (turns), and has no" in it for it in found)


class Scaling:
    """A reward model that counts."""

    turns = 0

    def learn(self, batch):
        self.turns += 1

    def estimate(self, batch):
        return with_leaves(batch, reward=batch.reward * self.turns)


def test_so_is_one_that_several_functions_of_the_library_use_once(tmp_path):
    cfg = DQNConfig().override({"policy.learn.batch_size": 4, "policy.learn.learning_starts": 4})
    policy = DQNPolicy(cfg.policy, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))
    buffer_, model = filled_buffer(), Scaling()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=OnlineRLContext()) as loop:
            loop.use(offpolicy_data_fetcher(cfg, buffer_, policy.learn_mode, model)).use(reward_estimator(cfg, model))
            loop.use(trainer(cfg, policy.learn_mode)).use(CkptSaver(policy, tmp_path, train_freq=1000)).run(3)
    (found,) = [str(it.message) for it in caught if "remembers" in str(it.message)]
    assert "Scaling remembers something from iteration to iteration (turns), and has no state_dict" in found


def filled_buffer():
    rng, buffer_ = np.random.default_rng(0), ReplayBuffer(100, seed=0)
    columns = {name: rng.random((20, 2), np.float32) for name in ("obs", "next_obs")}
    flags = {name: np.zeros(20, bool) for name in ("terminated", "truncated")}
    buffer_.push({**columns, **flags, "action": rng.integers(2, size=20), "reward": np.ones(20, np.float32)})
    return buffer_
