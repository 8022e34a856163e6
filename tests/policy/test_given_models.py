"""`model=`: each algorithm with a network of one's own, what is refused of it, and how it is saved and loaded."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite import policy as policies
from ding_lite.basics import save_checkpoint
from ding_lite.nn import (
    EnsembleMLP,
    NoisyLinear,
    QCritic,
    QEnsemble,
    RecurrentFeatures,
    RecurrentQNetwork,
    RunningNorm,
    SquashedGaussianActor,
    make_recurrent_actor_critic,
)
from ding_lite.policy import (
    A2CPolicy,
    AWACPolicy,
    BCPolicy,
    BoxActionMixin,
    C51Policy,
    CQLPolicy,
    DDPGPolicy,
    DiscreteCQLPolicy,
    DiscreteIQLPolicy,
    DQNPolicy,
    DQNPolicyConfig,
    HookError,
    IMPALAPolicy,
    IQLPolicy,
    IQNPolicy,
    Policy,
    PPOPolicy,
    QRDQNPolicy,
    R2D2Policy,
    RainbowPolicy,
    REINFORCEPolicy,
    SACPolicy,
    StateDictError,
    TD3BCPolicy,
    TD3Policy,
    build_policy,
    load_policy,
)

OBS, DISCRETE, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), spaces.Box(-2, 1, (2,), np.float32)


class Values(nn.Module):
    """Q-values [B, A], or N numbers for each action [B, A, N]."""

    def __init__(self, *shape):
        super().__init__()
        self.layer, self.shape = nn.Linear(3, int(np.prod(shape))), shape

    def forward(self, obs):
        return self.layer(obs).unflatten(-1, self.shape)


class Quantiles(Values):
    def forward(self, obs, tau):
        return super().forward(obs).unsqueeze(-1) * tau.expand(len(obs), -1).unsqueeze(-2)


class NoisyValues(nn.Module):
    """Numbers [B, A, N] by a layer whose noise explores."""

    def __init__(self, *shape):
        super().__init__()
        self.layer, self.shape = NoisyLinear(3, int(np.prod(shape))), shape

    def forward(self, obs):
        return self.layer(obs).unflatten(-1, self.shape)


class Policies(nn.Module):
    """An actor-critic without any class of the library."""

    def __init__(self, width=2):
        super().__init__()
        self.actor, self.critic = nn.Linear(3, width), nn.Linear(3, 1)

    def logits(self, obs):
        return self.actor(obs)

    def values(self, obs):
        return self.critic(obs).squeeze(-1)

    def forward(self, obs):
        return self.logits(obs), self.values(obs)


class Critic(nn.Module):
    """Critics of one's own, with gradients blocked by hand."""

    def __init__(self, count):
        super().__init__()
        self.layer = nn.Linear(5, count)

    def forward(self, obs, scaled_action, *, frozen=False):
        weight, bias = self.layer.weight, self.layer.bias
        if frozen:
            weight, bias = weight.detach(), bias.detach()
        return nn.functional.linear(torch.cat([obs, scaled_action], -1), weight, bias).T


class Acting(nn.Module):
    def __init__(self, count, stochastic=False):
        super().__init__()
        net = nn.Linear(3, 4 if stochastic else 2)
        self.actor = SquashedGaussianActor(net) if stochastic else nn.Sequential(net, nn.Tanh())
        self.critic = Critic(count)


class Valued(Acting):
    """With V(s), for IQL."""

    def __init__(self):
        super().__init__(2, stochastic=True)
        self.value = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))


class ValuedPolicies(Policies):
    """With critics, for IQL with Discrete actions."""

    def __init__(self):
        super().__init__()
        self.q_critic = QEnsemble(nn.Identity(), EnsembleMLP(3, [3, 2]))


def memory():
    return RecurrentFeatures(nn.Linear(3, 4), 4, 5)


MODELS = {
    DQNPolicy: lambda: Values(2),
    C51Policy: lambda: Values(2, 7),
    RainbowPolicy: lambda: NoisyValues(2, 7),
    QRDQNPolicy: lambda: Values(2, 5),
    IQNPolicy: lambda: Quantiles(2),
    R2D2Policy: lambda: RecurrentQNetwork(memory(), nn.Linear(5, 2)),
    DDPGPolicy: lambda: Acting(1),
    TD3Policy: lambda: Acting(2),
    SACPolicy: lambda: Acting(3, stochastic=True),
    CQLPolicy: lambda: Acting(3, stochastic=True),
    TD3BCPolicy: lambda: Acting(2),
    AWACPolicy: lambda: Acting(2, stochastic=True),
    IQLPolicy: Valued,
    DiscreteCQLPolicy: lambda: Values(2),
    DiscreteIQLPolicy: ValuedPolicies,
    BCPolicy: Policies,
    PPOPolicy: Policies,
    A2CPolicy: Policies,
    IMPALAPolicy: Policies,
    REINFORCEPolicy: Policies,
    "ppo_lstm": lambda: make_recurrent_actor_critic(OBS, DISCRETE, [4], 5),
}


def made(kind, model, **settings):
    kind = PPOPolicy if kind == "ppo_lstm" else kind
    space = BOX if issubclass(kind, BoxActionMixin) else DISCRETE
    return kind({"seed": 0, **settings}, OBS, space, model=model)


@pytest.mark.few
@pytest.mark.parametrize("kind", MODELS, ids=lambda it: getattr(it, "__name__", it))
def test_every_algorithm_acts_and_learns_with_it_and_a_file_of_it_is_loaded_with_another(kind, tmp_path, recwarn):
    torch.manual_seed(0)
    model = MODELS[kind]()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    policy = made(kind, model)
    policy.dry_run()

    assert policy.model is model
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items() if name in before)
    with torch.no_grad():
        policy.params[0].add_(0.5)
    policy.bump_version()
    save_checkpoint(policy.state_dict(), tmp_path / "a.pt")
    with pytest.raises(
        StateDictError, match=rf"made with model=, a network of the class .*:{type(model).__name__}: pass such a"
    ):
        load_policy(tmp_path / "a.pt")
    loaded = load_policy(tmp_path / "a.pt", model=MODELS[kind]())
    for obs in np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32):
        np.testing.assert_array_equal(loaded.predict(obs)[0], policy.predict(obs)[0])
    assert not [one for one in recwarn if "the default of TD3BCPolicy, has no effect" not in str(one.message)]


@pytest.mark.parametrize(
    ("kind", "model", "words"),
    [
        (
            DQNPolicy,
            lambda: Values(5),
            r"Values, returns a tensor of shape \[3, 5\] from forward\(obs\) .* \[3, 2\]: Q-values",
        ),
        (DQNPolicy, lambda: Policies(), r"a Policies, returns a tuple from forward\(obs\)"),
        (DQNPolicy, lambda: nn.Linear(4, 2), r"the model of DQNPolicy, a Linear, fails on a dummy batch \(3 observations, obs"),
        (C51Policy, lambda: Values(2), r"of shape \[3, 2\] from forward\(obs\) .* \[3, 2, any\]: logits \[B, A, N\]"),
        (QRDQNPolicy, lambda: Values(4, 2), r"\[3, 4, 2\] from forward\(obs\) .* \[3, 2, any\]: quantiles"),
        (IQNPolicy, lambda: Values(2), r"IQNPolicy, a Values, fails on a dummy batch .*TypeError"),
        (IQNPolicy, lambda: Quantiles(3), r"\[3, 3, 5\] from forward\(obs, tau\) .* \[3, 2, 5\]: quantiles"),
        (R2D2Policy, lambda: RecurrentQNetwork(memory(), nn.Linear(5, 3)), r"\[3, 3\] from step\(obs, state\) .* \[3, 2\]"),
        (DDPGPolicy, lambda: Acting(2), r"\[2, 3\] from critic\(obs, scaled_action\) .* \[1, 3\]: the values"),
        (TD3Policy, lambda: Acting(2, stochastic=True), r"a tuple from actor\(obs\) .* \[3, 2\]: unit actions"),
        (PPOPolicy, lambda: Policies(3), r"\[3, 3\] from logits\(obs\) .* \[3, 2\]: the logit .* Categorical"),
        ("ppo_lstm", lambda: make_recurrent_actor_critic(OBS, spaces.Discrete(4), [4], 5), r"\[3, 4\] from step"),
    ],
)
def test_an_output_of_the_wrong_shape_is_named_with_the_right_one_in_the_dry_run(kind, model, words):
    policy = made(kind, model())
    if kind == "ppo_lstm":
        policy.model.distribution = made(PPOPolicy, Policies()).model.distribution
    with pytest.raises(HookError, match=words):
        policy.dry_run()


def test_a_critic_that_lets_gradients_through_is_refused():
    model = Acting(2)
    model.critic = QCritic(nn.Identity(), EnsembleMLP(2, [5, 4, 1]))
    made(TD3Policy, model).dry_run()
    forward = model.critic.forward
    model.critic.forward = lambda obs, scaled_action, frozen=False: forward(obs, scaled_action)
    with pytest.raises(HookError, match=r"a Acting, does not block the gradients to the weights of the critic"):
        made(TD3Policy, model).dry_run()


def with_method(model, name):
    """The model with a method instead of this submodule."""
    found = getattr(model, name)
    delattr(model, name)
    model.network = found
    vars(model)[name] = found.forward
    return model


@pytest.mark.parametrize(
    ("kind", "model", "words"),
    [
        (DQNPolicy, lambda: Values, r"DQNPolicy\(model=...\) got the class Values: pass a torch.nn.Module"),
        (DQNPolicy, lambda: 3, r"DQNPolicy\(model=...\) got a int: pass a torch.nn.Module"),
        (DQNPolicy, lambda: nn.LazyLinear(2), r"got a LazyLinear, a LazyLinear whose parameters are not initialized"),
        (
            PPOPolicy,
            lambda: nn.Linear(3, 2),
            r"got a Linear, which has no logits and no values. Such a model has forward",
        ),
        (R2D2Policy, lambda: nn.Linear(3, 2), r"got a Linear, which has no initial_state and no step and no advance"),
        (SACPolicy, lambda: nn.Linear(3, 2), r"which has no actor and no critic. .*actor\.sample\(obs, generator\)"),
        *(
            (
                kind,
                lambda kind=kind, name=name: with_method(MODELS[kind](), name),
                rf"whose {name} is a method, expected an nn.Mod",
            )
            for kind, names in {
                TD3Policy: ("actor", "critic"),
                AWACPolicy: ("actor",),
                IQLPolicy: ("actor", "value"),
                DiscreteIQLPolicy: ("actor", "critic", "q_critic"),
            }.items()
            for name in names
        ),
    ],
)
def test_what_is_no_module_or_lacks_a_method_is_refused_at_once(kind, model, words):
    with pytest.raises(TypeError, match=words):
        made(kind, model())


def test_reinforce_without_a_baseline_needs_no_critic():
    class Actor(nn.Linear):
        def logits(self, obs):
            return self(obs)

    made(REINFORCEPolicy, Actor(3, 2)).dry_run()
    with pytest.raises(TypeError, match="which has no values"):
        made(REINFORCEPolicy, Actor(3, 2), baseline=True)


def test_a_policy_of_functions_takes_it_too():
    def loss_fn(policy, model, dist_class, batch):
        return -(dist_class(model.logits(batch.obs)).logp(batch.action) * batch.reward).mean() + model.values(batch.obs).mean()

    policy = build_policy("Built", loss_fn=loss_fn)(None, OBS, DISCRETE, model=Policies())
    policy.dry_run()
    assert isinstance(policy, Policy)


def test_settings_of_networks_that_it_replaces_are_a_warning(recwarn):
    made(C51Policy, Values(2, 7), **{"model.v_min": -3.0})
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"model.n_atom = 5 and model.layer_norm = True have no effect|layer_norm = True and"):
        made(C51Policy, Values(2, 7), **{"model.n_atom": 5, "model.layer_norm": True, "model.v_min": -3.0})


def test_a_default_of_normalised_observations_that_is_lost_is_a_warning(recwarn):
    normalizing = Acting(2)
    normalizing.normalizer = RunningNorm((3,))
    made(TD3BCPolicy, normalizing)
    made(TD3BCPolicy, Acting(2), **{"model.normalize_obs": False})
    made(TD3Policy, Acting(2))
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"normalize_obs = True, the default of TD3BCPolicy, has no effect: .* no `normalizer`"
    ):
        made(TD3BCPolicy, Acting(2))
    with pytest.warns(UserWarning, match=r"model.normalize_obs = True has no effect: this TD3Policy was made with model="):
        made(TD3Policy, Acting(2), **{"model.normalize_obs": True})


SIZE = 2
cfg_of_script = DQNPolicyConfig()


def test_so_are_settings_that_a_make_model_of_a_users_cannot_read(recwarn):
    class Own(DQNPolicy):
        def make_model(self):
            return nn.Sequential(nn.Linear(self.observation_space.shape[0], 4), nn.Linear(4, SIZE))

    class Reads(DQNPolicy):
        def make_model(self):
            return nn.Linear(3, self.cfg.model.encoder_hidden_size_list[-1])

    class Extends(DQNPolicy):
        def make_model(self):
            return super().make_model()

    class Asks(DQNPolicy):
        def width(self):
            return 2

        def make_model(self):
            return nn.Linear(3, self.width())

    class Passes(DQNPolicy):
        def make_model(self):
            return nn.Linear(3, len([self]) + 1)

    class Global(DQNPolicy):
        def make_model(self):
            return nn.Linear(3, cfg_of_script.model.encoder_hidden_size_list[0] if SIZE == 3 else 2)

    settings = {"seed": 0, "model.encoder_hidden_size_list": [5, 2]}
    for kind in (Reads, Extends, Asks, Passes, Global):
        kind(settings, OBS, spaces.Discrete(2))
    Own({"seed": 0}, OBS, spaces.Discrete(2))
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"model.encoder_hidden_size_list = \[5, 2\] has no effect: make_model of Own "):
        Own(settings, OBS, spaces.Discrete(2))


def test_its_normalizer_is_updated_and_shared_with_the_target_network():
    model = Values(2)
    model.normalizer = RunningNorm((3,))
    policy = made(DQNPolicy, model)
    rows = {"obs": torch.ones(4, 3), "next_obs": torch.ones(4, 3), "action": torch.zeros(4, dtype=torch.int64)}
    rows |= {"reward": torch.ones(4), "terminated": torch.zeros(4, dtype=torch.bool)}
    policy.learn_mode.forward(rows)

    assert model.normalizer.count == 4
    assert policy.target_model.normalizer is model.normalizer
    assert policy.target_model.layer is not model.layer


def test_a_state_of_it_does_not_fit_a_policy_with_networks_of_the_library():
    state = made(DQNPolicy, Values(2)).state_dict()
    with pytest.raises(StateDictError, match=r"The saved policy had a network of its own, a .*:Values: pass such a network"):
        DQNPolicy({"seed": 0}, OBS, DISCRETE).load_state_dict(state)


def test_the_page_says_of_each_policy_what_it_calls():
    page = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()
    table = page.split("the methods that each policy calls")[1].split("\n\n")[1]
    rows = [row.split("|")[1] for row in table.splitlines()]
    kinds = [name for name in policies.__all__ if name.endswith("Policy") and name not in ("Policy", "GreedyActionModule")]
    assert len(kinds) > 15
    assert [name for name in kinds if not any(f"`{name}`" in row for row in rows)] == []


def test_a_network_without_noise_for_rainbow_is_a_warning(recwarn):
    class Dropping(Values):
        def forward(self, obs):
            return nn.functional.dropout(super().forward(obs))

    class Acts(RainbowPolicy):
        def compute_actions(self, obs, state=(), **kwargs):
            return self.rng.integers(2, size=len(obs)), state, {}

    made(RainbowPolicy, NoisyValues(2, 7)).dry_run()
    made(RainbowPolicy, nn.Sequential(nn.Linear(3, 3), NoisyValues(2, 7))).dry_run()
    made(RainbowPolicy, Dropping(2, 7)).dry_run()  # noise of its own
    made(Acts, Values(2, 7)).dry_run()
    made(C51Policy, Values(2, 7)).dry_run()
    assert not [one for one in recwarn if "NoisyLinear" in str(one.message)]
    words = (
        r"RainbowPolicy\(model=...\) got a Values without a NoisyLinear, so it does not explore: .* or C51Policy, with an eps"
    )
    with pytest.warns(UserWarning, match=words):
        made(RainbowPolicy, Values(2, 7)).dry_run()


@pytest.mark.parametrize("kind", [A2CPolicy, REINFORCEPolicy, BCPolicy, DQNPolicy])
def test_a_network_with_memory_is_refused_by_policies_that_would_drop_it(kind):
    with pytest.raises(
        TypeError, match=rf"got a RecurrentActorCritic, .* and {kind.__name__} would act and learn without it: use"
    ):
        made(kind, make_recurrent_actor_critic(OBS, DISCRETE, [4], 3))


def test_a_policy_that_has_its_own_way_with_the_memory_takes_it():
    class Remembers(A2CPolicy):
        def get_initial_state(self):
            return self.model.initial_state()

        def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
            logit, state = self.model.step(obs, state)
            return self.drawn(logit, state, explore)

    class Restarts(A2CPolicy):
        def compute_actions(self, obs, state=(), *, explore=True, **kwargs):
            start = [torch.stack([element] * len(obs)) for element in self.model.initial_state()]
            return self.drawn(self.model.step(obs, start)[0], state, explore)

    for kind in (Remembers, Restarts):
        assert made(kind, make_recurrent_actor_critic(OBS, DISCRETE, [4], 3)).collect_mode
    for kind in (PPOPolicy, IMPALAPolicy):
        made(kind, make_recurrent_actor_critic(OBS, DISCRETE, [4], 3)).dry_run()


@pytest.mark.parametrize("parameters", ["", "count"])
def test_a_network_that_says_that_it_has_no_memory_may_be_used_where_there_is_none(parameters):
    class Plain(nn.Linear):
        pass

    Plain.initial_state = eval(f"lambda self{', ' + parameters if parameters else ''}: ()")
    policy = DQNPolicy(None, spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), model=Plain(3, 2))
    assert policy.get_initial_state() == []
