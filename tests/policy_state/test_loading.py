"""A state is looked at before anything of it is taken over, and all of it is taken over or nothing."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ding_lite.data import tree
from ding_lite.engine import load_checkpoint, save_checkpoint
from ding_lite.policy import A2CPolicy, C51Policy, DQNPolicy, PPOPolicy, RainbowPolicy, SACPolicy
from ding_lite.policy_base import Policy
from ding_lite.policy_parts import EntropyCoeffSchedule
from ding_lite.policy_state import StateDictError

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
FIRST = "layers.0.weight"


def rows(n=6):
    zeros = torch.zeros(n)
    columns = {"obs": torch.ones(n, 4), "next_obs": torch.ones(n, 4), "action": torch.arange(n) % 3, "reward": zeros + 1}
    return tree({**columns, "terminated": zeros.bool(), "truncated": zeros.bool()})


def learned(kind=DQNPolicy, steps=2, cfg=None):
    policy = kind({"seed": 0, **(cfg or {})}, BOX, DISCRETE)
    for _ in range(steps):
        policy.learn_mode.forward(rows())
    policy.collect_mode.forward(np.zeros((2, 4), np.float32), eps=0.5)
    return policy


def changed(state, *path, to):
    state = copy.deepcopy(state)
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    if to is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to(inner[path[-1]]) if callable(to) else to
    return state


def with_nan(tensor):
    tensor = tensor.clone()
    tensor.view(-1)[0] = float("nan")
    return tensor


@pytest.fixture(scope="module")
def state():
    return learned().state_dict()


MISFITS = {
    "weights of another shape": (
        ("model", FIRST),
        torch.zeros(3, 3),
        r"'layers.0.weight' is float32 \[3, 3\], expected float32",
    ),
    "weights of another kind": (("model", FIRST), lambda it: it.double(), r"'layers.0.weight' is float64 .*, expected"),
    "weights that are no tensors": (("model", FIRST), lambda it: it.tolist(), "'layers.0.weight' is a list, expected a tensor"),
    "weights that are no numbers": (
        ("model", FIRST),
        with_nan,
        "'layers.0.weight' holds 1 numbers that are not finite, such as nan",
    ),
    "missing weights": (("model", FIRST), KeyError, '(?s)Missing key.*"layers.0.weight"'),
    "moments of another shape": (
        ("optimizer", "state", 0, "exp_avg"),
        torch.zeros(64, 4),
        r"state\[.optimizer.\]\[.state.\]\[0\]\['exp_avg'\] is float32 \[64, 4\], expected float32 \[128, 4\]",
    ),
    "moments that are no numbers": (
        ("optimizer", "state", 0, "exp_avg_sq"),
        with_nan,
        "'exp_avg_sq'. holds 1 numbers that are not",
    ),
    "missing moments": (("optimizer", "state", 1, "exp_avg"), KeyError, "lacks 'exp_avg': it was saved by another optimizer"),
    "moments of no parameter": (("optimizer", "state", 9), {}, "has an entry 9, and there are 6 parameters"),
    "a learning rate that is no number": (("optimizer", "param_groups", 0, "lr"), float("inf"), r"\['lr'\] is inf"),
    "a missing setting": (
        ("optimizer", "param_groups", 0, "betas"),
        KeyError,
        "lacks 'betas', which Adam has: it was saved by another",
    ),
    "a negative learning rate": (
        ("optimizer", "param_groups", 0, "lr"),
        -1.0,
        r"\['lr'\] is -1.0, which Adam does not allow \(ValueError: Invalid .*-1.0\); this optimizer has 0.001. Load an",
    ),
    "a learning rate of NaN": (
        ("optimizer", "param_groups", 0, "lr"),
        float("nan"),
        r"\['lr'\] is nan, and this optimizer has 0.001: load an earlier",
    ),
    "a learning rate that is a bool": (("optimizer", "param_groups", 0, "lr"), True, r"\['lr'\] is a bool, expected a number"),
    "no learning rate": (
        ("optimizer", "param_groups", 0, "lr"),
        None,
        r"\['lr'\] is a NoneType, expected a number .* such as 0.001",
    ),
    "a sparse learning rate": (
        ("optimizer", "param_groups", 0, "lr"),
        torch.ones(1).to_sparse(),
        r"\['lr'\] is a tensor of torch.float32, torch.sparse_coo on cpu, expected a number",
    ),
    "a decay above one": (
        ("optimizer", "param_groups", 0, "betas"),
        (2.0, 0.9),
        r"\['betas'\] is \(2.0, 0.9\), which Adam does not allow",
    ),
    "a decay of NaN": (
        ("optimizer", "param_groups", 0, "betas"),
        (float("nan"), 0.9),
        r"\['betas'\]\[0\] is nan, and this optimizer has 0.9: load",
    ),
    "half of the decays": (
        ("optimizer", "param_groups", 0, "betas"),
        (0.9,),
        r"is \(0.9,\), expected 2 numbers as in \(0.9, 0.999\)",
    ),
    "a negative epsilon": (("optimizer", "param_groups", 0, "eps"), -1.0, r"\['eps'\] is -1.0, which Adam does not allow"),
    "a negative weight decay": (
        ("optimizer", "param_groups", 0, "weight_decay"),
        -0.5,
        r"\['weight_decay'\] is -0.5, which Adam",
    ),
    "a switch that is text": (
        ("optimizer", "param_groups", 0, "amsgrad"),
        "yes",
        r"\['amsgrad'\] is 'yes', expected a value such as False",
    ),
    "switches that exclude each other": (
        ("optimizer", "param_groups", 0, "foreach"),
        True,
        r"\['foreach'\] is True, which Adam",
    ),
    "groups that are none": (("optimizer", "param_groups"), [3], r'"param_groups"\] is \[3\], expected a list of dicts'),
    "parameters in another order": (
        ("optimizer", "param_groups", 0, "params"),
        [5, 4, 3, 2, 1, 0],
        r"\['params'\] is \[5, 4, 3, 2, 1, 0\], expected \[0, 1, 2, 3, 4, 5\]",
    ),
    "moments of one parameter less": (
        ("optimizer", "state", 2),
        KeyError,
        r'"state"\] lacks 2, the moments of a parameter: it had those of \[0, 1, 2, 3, 4, 5\] when it was saved',
    ),
    "moments that are no dict": (("optimizer", "state", 2), [1], r"\[2\] is \[1\], expected a dict of moments"),
    "a negative count of steps": (
        ("optimizer", "state", 1, "step"),
        torch.tensor(-3.0),
        r"\[1\] makes parameter 1 .* in a step with zero gradients; its smallest numbers are {'step': -3.0, 'exp_avg': ",
    ),
    "negative squares": (
        ("optimizer", "state", 0, "exp_avg_sq"),
        lambda it: it - 1,
        r"\[0\] makes parameter 0 .* in a step with zero gradients",
    ),
    "sparse weights": (
        ("model", FIRST),
        lambda it: it.to_sparse(),
        r"is float32 \[128, 4\], layout sparse_coo, expected float32 .*. Convert it with tensor.to_dense\(\)",
    ),
    "compressed weights": (("target_model", FIRST), lambda it: it.to_sparse_csr(), "layout sparse_csr, expected float32"),
    "weights without numbers": (("model", FIRST), lambda it: it.to("meta"), "on the device meta, without data, expected"),
    "quantized weights": (
        ("target_model", FIRST),
        lambda it: torch.quantize_per_tensor(it, 0.1, 0, torch.qint8),
        r"qint8 \[128, 4\], quantized, expected float32 \[128, 4\]. Convert it with tensor.dequantize\(\)",
    ),
    "complex weights": (("model", FIRST), lambda it: it.to(torch.complex64), r"is complex64 \[128, 4\], expected"),
    "nested weights": (("model", FIRST), lambda it: torch.nested.nested_tensor([it]), "is a nested tensor, expected"),
    "sparse moments": (
        ("optimizer", "state", 0, "exp_avg"),
        lambda it: it.to_sparse(),
        r"\['exp_avg'\] is .* sparse_coo, expected",
    ),
    "a counter that is not whole": (
        ("train_iter",),
        1.5,
        r"state\['train_iter'\] is 1.5, expected an integer from 0 to",
    ),
    "a counter without a number": (("train_iter",), torch.tensor(3, device="meta"), r"state\['train_iter'\] is tensor\(.*meta"),
    "no record where one stands": (("made_with",), 3, r'state\["made_with"\] is 3, expected a dict with \[.algorithm'),
    "a record with a part less": (
        ("made_with", "config"),
        KeyError,
        r'state\["made_with"\] lacks .config., it has \[.action_sp',
    ),
    "a record with a part of another kind": (
        ("made_with", "config"),
        [1],
        r"\['config'\] is \[1\] of type list, expected a dict",
    ),
    "a record without a name": (("made_with", "algorithm"), None, r"\['algorithm'\] is None of type NoneType, expected a str"),
    "a record with an empty name": (("made_with", "algorithm"), "", r"\['algorithm'\] is empty, expected the name of an"),
    "a record of a space that is none": (
        ("made_with", "observation_space"),
        {"kind": "Dict", "parts": {"a": 3}},
        r"""\['observation_space'\]\['parts'\]\['a'\] is 3, expected a dict with the "kind" of a space, such as "Box": """,
    ),
    "another number of parameters": (
        ("optimizer", "param_groups", 0, "params"),
        [0, 1],
        r"has \[2\] parameters per group, and",
    ),
    "a state of SGD": (
        ("optimizer",),
        lambda it: torch.optim.SGD([nn.Parameter(torch.ones(1))]).state_dict(),
        "parameters per",
    ),
    "a target of another shape": (
        ("target_model", FIRST),
        torch.zeros(3),
        r"state\['target_model'\]\['layers.0.weight'\] is float32",
    ),
    "a target with missing weights": (
        ("target_model", FIRST),
        KeyError,
        '(?s)does not fit this DQNPolicy: .*Missing key.*"layers.0.weig',
    ),
    "no target": (("target_model",), KeyError, "this state of a DQNPolicy lacks 'target_model', it has"),
    "no random numbers": (("learn",), KeyError, "this state of a DQNPolicy lacks 'learn', it has"),
    "half of the random numbers": (
        ("learn", "rng"),
        KeyError,
        r"state\['learn'\] lacks 'rng', it has \['action_space', 'exploration', 'generator'\]: pass the whole",
    ),
    "random numbers of another kind": (
        ("collect", "generator"),
        torch.zeros(2),
        r"state\['collect'\]\['generator'\] is float32 \[2\] and not valid",
    ),
    "something else for them": (("evaluate",), None, r"state\['evaluate'\] is None, expected a dict of random states"),
    "a counter that is no number": (
        ("train_iter",),
        "7",
        r"state\['train_iter'\] is '7', expected an integer from 0 to",
    ),
    "a negative counter": (("version",), -1, r"state\['version'\] is -1, expected an integer from 0 to"),
    "a name of weights that is a number": (("model", 5), torch.zeros(1), r'state\["model"\]|have the key 5 of type int'),
    "a name of a network's setting that is a number": (
        ("made_with", "config", "model", 5),
        1,
        r"\['config'\]\['model'\] has the key 5 of type int, expected names",
    ),
    "a name of a setting that is a number": (("made_with", "config", 5), 1, r"\['config'\] has the key 5 of type int"),
    "a name of a space's entry that is a number": (
        ("made_with", "observation_space", 5),
        1,
        r"\['observation_space'\] has the key 5 of type int",
    ),
    "a setting that the optimizer does not have": (
        ("optimizer", "param_groups", 0, "extra"),
        1,
        r'\["param_groups"\]\[0\] has \'extra\', which Adam does not have: it was saved by another optimizer',
    ),
}


def taken(policy):
    """All that loading could have changed, in a form that can be compared."""
    acting = [mode.actor.weights for mode in (policy.collect_mode, policy.eval_mode)]
    return listed([policy.state_dict(), acting, policy.train_iter, policy.version])


def listed(value):
    if isinstance(value, dict):
        return {name: listed(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [listed(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.fixture(scope="module")
def another():
    """A policy that refuses states, one after the other."""
    return learned(steps=1, cfg={"seed": 3})


@pytest.mark.few
@pytest.mark.parametrize("name", MISFITS)
def test_a_state_with_a_part_that_does_not_fit_changes_nothing_and_the_error_names_the_key(name, state, another):
    path, to, words = MISFITS[name]
    policy = another
    before = taken(policy)
    with pytest.raises(StateDictError, match=words):
        policy.load_state_dict(changed(state, *path, to=to))

    assert taken(policy) == before
    policy.learn_mode.forward(rows())


def test_moments_of_another_network_are_refused_where_the_weights_are_the_same_in_number():
    narrow = learned(cfg={"model.encoder_hidden_size_list": [8, 8]})
    policy = learned()
    mixed = {**policy.state_dict(), "optimizer": narrow.state_dict()["optimizer"]}
    with pytest.raises(StateDictError, match=r"\['exp_avg'\] is float32 \[8, 4\], expected float32 \[128, 4\]"):
        policy.learn_mode.load_state_dict(mixed)


@pytest.mark.few
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adafactor, torch.optim.NAdam])
def test_every_optimizers_own_state_is_taken_before_its_first_step(optimizer):
    kind = DQNPolicy.with_updates("Other", optimizer_fn=lambda policy, config: optimizer(policy.params, lr=1e-3))
    one, other = learned(kind), kind({"seed": 5}, BOX, DISCRETE)
    other.load_state_dict(one.state_dict())
    for policy in (one, other):
        policy.learn_mode.forward(rows())

    assert all(torch.equal(a, b) for a, b in zip(one.params, other.params))


def test_moments_that_only_some_parameters_have_are_taken_and_so_is_the_state_of_an_older_version():
    policy, again = learned(), learned()
    last = policy.params[-1]
    del policy.optimizer.state[last]
    state = policy.state_dict()
    again.load_state_dict(state)
    assert again.params[-1] not in again.optimizer.state

    again.load_state_dict(changed(learned().state_dict(), "optimizer", "kept", to=KeyError))
    assert again.params[-1] in again.optimizer.state


def test_a_learning_rate_that_a_schedule_has_brought_to_zero_is_taken(state):
    policy = learned()
    policy.load_state_dict(changed(state, "optimizer", "param_groups", 0, "lr", to=0.0))

    assert policy.optimizer.param_groups[0]["lr"] == 0


OTHERS = {
    "another algorithm": (
        A2CPolicy,
        None,
        BOX,
        DISCRETE,
        "this state was saved by a DQNPolicy, and this policy is a A2CPolicy: make a ",
    ),
    "another width": (
        DQNPolicy,
        {"model.encoder_hidden_size_list": [8]},
        BOX,
        DISCRETE,
        r"different DQNPolicy: .*encoder_hidden_size_list is \[128, 128\] in the state and \[8\] in this policy.*from_dict",
    ),
    "another activation": (
        DQNPolicy,
        {"model.activation": "tanh"},
        BOX,
        DISCRETE,
        "activation is 'relu' in the state and 'tanh' in this policy",
    ),
    "other observations": (
        DQNPolicy,
        None,
        spaces.Box(-1, 1, (5,)),
        DISCRETE,
        r"its observation space is Box\(shape=\[4\], .*, and that of this policy is Box\(shape=\[5\]",
    ),
    "other actions": (
        DQNPolicy,
        None,
        BOX,
        spaces.Discrete(3, start=1),
        r"its action space is Discrete\(n=3\), and .* start=1",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_policy_is_refused_and_the_error_names_the_difference(name, state, tmp_path):
    kind, cfg, observations, actions, words = OTHERS[name]
    policy = kind(cfg, observations, actions)
    loaded = load_checkpoint(save_checkpoint(state, tmp_path / "policy.pt"))
    for given in (loaded, {"model": loaded["model"], "made_with": loaded["made_with"]}):
        with pytest.raises(StateDictError, match=words):
            policy.load_state_dict(given)


def test_a_state_of_a2c_is_not_one_of_ppo_though_the_networks_are_the_same():
    a2c, ppo = A2CPolicy(None, BOX, DISCRETE), PPOPolicy(None, BOX, DISCRETE)
    with pytest.raises(
        StateDictError, match=r"state was saved by a A2CPolicy, and this policy is a PPOPolicy.*policy.set_weights"
    ):
        ppo.load_state_dict(a2c.state_dict())
    ppo.set_weights(a2c.state_dict()["model"])

    assert all(torch.equal(a, b) for a, b in zip(a2c.params, ppo.params))
    with pytest.raises(StateDictError, match="different RainbowPolicy"):
        RainbowPolicy(None, BOX, DISCRETE).load_state_dict(C51Policy(None, BOX, DISCRETE).state_dict())


def test_a_derived_policy_takes_the_state_of_what_it_is_derived_from_and_the_reverse(state):
    derived = DQNPolicy.with_updates("Derived")(None, BOX, DISCRETE)
    derived.load_state_dict(state)
    again = DQNPolicy(None, BOX, DISCRETE)
    again.load_state_dict(derived.state_dict())

    assert all(torch.equal(a, b) for a, b in zip(again.params, derived.params))


def test_learning_may_go_on_at_other_settings_and_in_other_bounds(state):
    policy = DQNPolicy({"lr": 0.5, "learn.batch_size": 7, "seed": 9}, spaces.Box(-9, 9, (4,), np.float32), DISCRETE)
    policy.load_state_dict(state)

    assert policy.train_iter == 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=spaces.Box(0, 255, (3, 2), np.uint8), b=spaces.Tuple((DISCRETE, spaces.MultiBinary(2)))),
        spaces.Box(np.array([-1.0, -np.inf]), np.array([1.0, np.inf])),
        spaces.MultiDiscrete([2, 3]),
    ],
)
def test_what_a_policy_was_made_with_is_plain_data_and_makes_another(space, tmp_path):
    policy = PPOPolicy({"beta": 0.5, "own": print, "lr": 0.25}, space, DISCRETE)
    saved = load_checkpoint(save_checkpoint(policy.state_dict(), tmp_path / "policy.pt"))["made_with"]

    assert saved == policy.made_with
    assert (saved["algorithm"], saved["derived_from"]) == ("PPOPolicy", [])
    assert saved["settings"] == {"beta": 0.5, "own": "<builtin_function_or_method>"}
    again = PPOPolicy(type(policy.cfg).from_dict(saved["config"]), space, DISCRETE)
    assert again.made_with["config"] == saved["config"]
    again.load_state_dict(policy.state_dict())


def test_what_is_no_state_says_what_to_do(state, tmp_path):
    policy = DQNPolicy(None, BOX, DISCRETE)
    for path in ("runs/ckpt/final.pt", tmp_path / "runs/ckpt/final.pt"):
        words = r"wants a state, got the path '.*runs/ckpt/final.pt': .*load_state_dict\(load_checkpoint\('.*final.pt'\)\)"
        for take in (policy.load_state_dict, policy.learn_mode.load_state_dict):
            with pytest.raises(TypeError, match=words):
                take(path)
        with pytest.raises(
            TypeError, match=r"set_weights wants weights .*, got the path .*final.pt': load_policy\('.*final.pt'\)"
        ):
            policy.set_weights(path)
    several = r"the states of several policies, 'a', 'b': load one of them, load_state_dict\(state\['policies'\]\['a'\]\)"
    with pytest.raises(StateDictError, match=several):
        policy.load_state_dict({"policies": {"a": state, "b": state}})
    with pytest.raises(TypeError, match=r"wants a state from state_dict\(\), got None"):
        policy.load_state_dict(None)
    with pytest.raises(StateDictError, match=r"it lacks 'model'.*These look like weights: load them with set_weights"):
        policy.load_state_dict(state["model"])
    with pytest.raises(StateDictError, match=r"set_weights wants weights, got a whole state: use load_state_dict\(state\)"):
        policy.set_weights(state)
    with pytest.raises(TypeError, match=r"set_weights wants weights from get_weights\(\), got 3 of type int"):
        policy.set_weights(3)


class Norm:
    """As a script may attach it."""

    def __init__(self, mean, fails=False):
        self.mean, self.count, self.best, self.fails = mean, 1, -float("inf"), fails

    def state_dict(self):
        return {"mean": self.mean, "count": self.count, "best": self.best, "last": [1, 2]}

    def load_state_dict(self, state):
        self.mean = state["mean"]
        if self.fails:
            raise KeyError("something of its own")
        self.count = state["count"]


@pytest.mark.few
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "mean",
            np.zeros(3),
            r"state\[.attached.\]\['norm'\]\['mean'\] is float64 \[3\], expected float\d\d \[2\]",
        ),
        ("mean", np.array([np.nan, 1]), r"\['mean'\] holds numbers that are not finite, and the current ones are"),
        ("mean", np.zeros(2, bool), r"\['mean'\] is bool \[2\], expected float64 \[2\]"),
        ("count", "3", r"\['count'\] is a str, expected a number or an array of numbers"),
        ("more", 3, r"has \['best', 'count', 'last', 'mean', 'more'\], expected \['best', 'count', 'last', 'mean'\]"),
    ],
)
def test_what_is_attached_is_looked_at_too_also_where_it_is_attached_later(key, value, words):
    policy, later = learned(), learned()
    policy.attach("norm", Norm(np.ones(2)))
    state = policy.state_dict()
    state["attached"]["norm"][key] = value
    before = taken(policy)
    with pytest.raises(StateDictError, match=words):
        policy.load_state_dict(state)
    later.load_state_dict(state)
    with pytest.raises(StateDictError, match=words):
        later.attach("norm", Norm(np.ones(2)))

    assert taken(policy) == before


def test_what_is_empty_or_has_a_shape_that_varies_takes_what_it_is_given(tmp_path):
    policy, norm = learned(), Norm(np.zeros(0))
    policy.attach("norm", norm)
    policy.load_state_dict(changed(policy.state_dict(), "attached", "norm", "mean", to=np.ones(5)))
    policy.load_state_dict(changed(policy.state_dict(), "attached", "norm", "last", to=[]))
    norm.unchecked_entries = ("mean",)
    policy.load_state_dict(changed(policy.state_dict(), "attached", "norm", "mean", to=np.ones(3)))

    assert norm.mean.tolist() == [1, 1, 1]


@pytest.mark.few
@pytest.mark.parametrize("attribute", ["unchecked_entries", "new_entries"])
@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("mean rows", r"is 'mean rows', expected a tuple of the names of entries: write {attribute} = \('mean rows',\)"),
        (3, r"is 3, expected a tuple of the names of entries: write {attribute} = \(\"mean\",\)"),
        (("mean", 3), r"is \('mean', 3\), expected a tuple"),
    ],
)
def test_names_of_entries_that_are_no_tuple_are_refused(attribute, names, words):
    policy, norm, later = learned(), Norm(np.ones(2)), Norm(np.ones(2))
    message = rf"Norm\.{attribute} {words.replace('{attribute}', attribute)}"
    policy.attach("norm", norm)
    state, before = policy.state_dict(), taken(policy)
    for one in (norm, later):
        setattr(one, attribute, names)

    with pytest.raises(TypeError, match=message):
        policy.load_state_dict(state)
    with pytest.raises(TypeError, match=message):
        policy.attach("later", later)
    assert taken(policy) == before
    assert "later" not in policy.attachments


def test_where_a_part_fails_all_others_are_put_back():
    policy, other = learned(steps=1), learned(steps=3, cfg={"lr": 0.5})
    for one in (policy, other):
        one.attach("one", Norm(np.full(2, float(one.train_iter))))
        one.attach("two", Norm(np.zeros(2)))
    failing = policy.attachments["two"]
    before, state = taken(policy), other.state_dict()
    failing.fails = True
    with pytest.raises(KeyError, match="something of its own") as raised:
        policy.load_state_dict(state)
    failing.fails = False

    assert taken(policy) == before
    assert "DQNPolicy.load_state_dict: changes cannot be undone" in raised.value.__notes__[0]
    policy.load_state_dict(state)
    assert policy.train_iter == 3


class Annealed(DQNPolicy):
    """With an entry of its own in the state, read as it was written."""

    n_updates = 0

    def loss(self, batch):
        self.n_updates += 1
        return super().loss(batch)

    def state_dict(self):
        return {**super().state_dict(), "n_updates": self.n_updates}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.n_updates = state["n_updates"]


class OfLibrary(Annealed):
    """Its override needs an entry of the library."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.loaded_at = state["train_iter"]


@pytest.mark.parametrize("kind", [Annealed, Annealed.with_updates(name="Derived"), DQNPolicy.with_updates(mixins=[])])
def test_a_state_of_only_weights_leaves_entries_of_a_derived_class_as_they_are(kind):
    policy, other = learned(kind, steps=3), learned(kind, steps=1)
    now, whole = getattr(other, "n_updates", None), policy.state_dict()
    other.load_state_dict({"model": whole["model"], "made_with": whole["made_with"], "eval_value": 3.0, "counters": {}})

    assert torch.equal(other.state_dict()["model"][FIRST], whole["model"][FIRST])
    assert (getattr(other, "n_updates", None), other.train_iter) == (now, 1)
    other.load_state_dict(whole)
    assert getattr(other, "n_updates", None) == getattr(policy, "n_updates", None)
    assert other.train_iter == 3


def test_an_override_that_needs_an_entry_of_the_library_hears_what_a_state_of_only_weights_is():
    policy = learned(OfLibrary)
    before = taken(policy)
    with pytest.raises(KeyError, match="train_iter") as raised:
        policy.load_state_dict({"model": learned(OfLibrary, steps=5).state_dict()["model"]})

    notes = raised.value.__notes__
    assert notes[0] == "OfLibrary.load_state_dict: nothing was changed."
    assert "holds only weights, as best.pt does. Read other entries with state.get(name)" in notes[1]
    assert taken(policy) == before


class Beside(DQNPolicy):
    def before_loss_init(self):
        super().before_loss_init()
        self.extra = nn.Linear(4, 2)
        self.extra_optimizer = torch.optim.Adam(self.extra.parameters(), fused=True)

    def after_step(self):
        super().after_step()
        self.extra_optimizer.zero_grad()
        self.extra(torch.ones(1, 4)).square().sum().backward()
        self.extra_optimizer.step()


@pytest.mark.few
@pytest.mark.parametrize(
    ("path", "to", "words"),
    [
        (("extra", "weight"), torch.zeros(2, 3), r"\['extra'\]\['weight'\] is float32 \[2, 3\], expected float\d\d \[2, 4\]"),
        (("extra", "weight"), KeyError, '(?s)does not fit this Beside: .*Missing key.*"weight"'),
        (("extra_optimizer", "state", 0, "exp_avg"), torch.zeros(1), r"\['exp_avg'\] is float32 \[1\]"),
        (
            ("extra_optimizer", "param_groups", 0, "lr"),
            -1.0,
            r"\['extra_optimizer'\]\[.param_groups.\]\[0\]\['lr'\] is -1.0, which",
        ),
        (("extra_optimizer", "state", 0), KeyError, r"\['extra_optimizer'\]\[.state.\] lacks 0, the moments of a parameter"),
        (("extra",), KeyError, r"lacks 'extra', a Linear of this Beside"),
    ],
)
def test_networks_and_optimizers_beside_the_model_are_looked_at(path, to, words):
    state, policy = learned(Beside).state_dict(), Beside({"seed": 1}, BOX, DISCRETE)
    before = taken(policy)
    with pytest.raises(StateDictError, match=words):
        policy.load_state_dict(changed(state, "attached", *path, to=to))

    assert taken(policy) == before


class OnFirstUse(DQNPolicy):
    """Makes a network when it learns."""

    aux, critics = None, ()

    def after_step(self):
        super().after_step()
        if self.aux is None:
            self.aux, self.critics = nn.Linear(4, 1), [nn.Linear(4, 1)]


class InAfterInit(OnFirstUse):
    """Does what the error advises."""

    def after_init(self):
        super().after_init()
        self.aux, self.critics = nn.Linear(4, 1), [nn.Linear(4, 1)]


@pytest.mark.parametrize("name", ["aux", "critics"])
def test_a_network_that_is_made_on_first_use_is_named_where_it_would_be_lost(name, tmp_path):
    policy = learned(OnFirstUse)
    if name == "critics":
        del policy.aux
    save_checkpoint(policy.state_dict(), tmp_path / "policy.pt")
    state, again = load_checkpoint(tmp_path / "policy.pt"), OnFirstUse({"seed": 1}, BOX, DISCRETE)
    before = taken(again)
    with pytest.raises(
        StateDictError, match=rf"has '{name}[^']*', a network or optimizer .*: make self.{name} in after_init, and not"
    ):
        again.load_state_dict(state)
    assert taken(again) == before

    again.load_state_dict({"model": state["model"]})  # only weights
    DQNPolicy({"seed": 1}, BOX, DISCRETE).load_state_dict(state)  # a base class does without it
    policy.load_state_dict(state)
    with pytest.raises(StateDictError, match=r'state\["networks"\] is 3, expected a list of names'):
        policy.load_state_dict({**state, "networks": 3})


def test_what_is_attached_later_and_networks_of_after_init_are_taken():
    policy, again = learned(InAfterInit), InAfterInit({"seed": 1}, BOX, DISCRETE)
    policy.attach("later", nn.Linear(2, 1))
    again.load_state_dict(policy.state_dict())
    again.attach("later", nn.Linear(2, 1))

    pairs = zip(policy.attachments.values(), again.attachments.values(), strict=True)
    assert all(torch.equal(one.weight, other.weight) for one, other in pairs if isinstance(one, nn.Linear))
    again.load_learned_state(policy.learned_state())


class Own(EntropyCoeffSchedule, DQNPolicy):
    """Says itself what more is in its state, and refuses some of it when the rest is loaded."""

    def state_dict(self):
        return {**super().state_dict(), "seen": torch.ones(3)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if state["seen"].sum() > 3:
            raise ValueError("seen too much")


def test_what_derived_classes_and_mixins_add_is_looked_at_and_put_back():
    policy, state = learned(Own, steps=1, cfg={"seed": 4}), learned(Own).state_dict()
    before = taken(policy)
    for key, value, words in (
        ("entropy_coeff", float("nan"), r"state\['entropy_coeff'\] holds numbers that are not finite"),
        ("seen", torch.zeros(2), r"state\['seen'\] is float32 \[2\], expected float32 \[3\]"),
        ("seen", torch.full((3,), 2.0), "seen too much"),
    ):
        with pytest.raises(ValueError, match=words):
            policy.load_state_dict({**state, key: value})
        assert taken(policy) == before


class Table(Policy):
    """Has no network."""

    def before_init(self):
        self.w = np.ones(2)

    def compute_actions(self, obs, state=(), **kwargs):
        return np.zeros(len(obs), np.int64), state, {}

    def learn_on_batch(self, batch):
        self.w = self.w + 1

    def get_weights(self):
        return {"w": self.w}

    def set_weights(self, weights):
        self.w = np.asarray(weights["w"])


def test_weights_of_a_kind_of_ones_own_are_looked_at(tmp_path):
    policy = Table(None, BOX, DISCRETE)
    for weights, words in (
        ({"w": np.ones(3)}, r"state\[.model.\]\['w'\] is float64 \[3\], expected float64 \[2\]"),
        ({"w": np.array([1, np.nan])}, r"\['w'\] holds numbers that are not finite"),
        ({"v": np.ones(2)}, r"has \['v'\], expected \['w'\]"),
    ):
        with pytest.raises(StateDictError, match=words):
            policy.load_state_dict({"model": weights})
    policy.load_state_dict(load_checkpoint(save_checkpoint({"model": {"w": np.full(2, 4.0)}}, tmp_path / "table.pt")))

    assert policy.w.tolist() == [4, 4]


def test_weights_that_are_no_numbers_are_refused_and_those_of_a_policy_that_went_astray_can_be_replaced():
    policy = learned()
    before = policy.get_weights()
    for broken in (float("nan"), float("inf")):
        with pytest.raises(StateDictError, match=f"'layers.0.bias' holds 128 numbers that are not finite, such as {broken}"):
            policy.set_weights({**before, "layers.0.bias": torch.full((128,), broken)})
    with torch.no_grad():
        policy.params[0].fill_(float("nan"))
    policy.load_state_dict({"model": before})

    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.get_weights().items())


def test_policies_of_continuous_actions_are_told_apart_by_their_bounds():
    one, other = (spaces.Box(-bound, bound, (2,), np.float32) for bound in (1, 2))
    with pytest.raises(StateDictError, match=r"its action space is Box\(.*low=-1.0, high=1.0\), and that .*high=2.0"):
        SACPolicy(None, BOX, other).load_state_dict(SACPolicy(None, BOX, one).state_dict())


def test_a_state_made_by_hand_of_weights_alone_says_in_which_settings_it_differs():
    kind = DQNPolicy.with_updates("Wide", make_model=lambda policy, o, a, config: nn.Linear(4, config.get("width", 3)))
    wide, wider = (nn.Linear(4, width).state_dict() for width in (3, 5))
    policy = kind({"width": 3}, BOX, DISCRETE)
    made_with = {**policy.made_with, "settings": {"width": 5}}
    policy.load_state_dict({"model": wide, "made_with": policy.made_with})
    words = r"'weight' is float32 \[5, 4\], .* These settings differ: width is 5 in the state and 3 in this policy"
    with pytest.raises(StateDictError, match=words):
        policy.load_state_dict({"model": wider, "made_with": made_with})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", 2**70, r"\['lr'\] is 1180591620717411303424, and this optimizer has 0.001"),
        ("eps", 2**70, r"\['eps'\] is 1180591620717411303424"),
        ("weight_decay", 1e12, r"\['weight_decay'\] is 1000000000000.0, and this optimizer has 0"),
        ("maximize", True, r"\['maximize'\] is True, and this Adam has False: set it to False"),
    ],
)
def test_settings_of_an_optimizer_that_no_training_has_are_refused(name, value, message):
    policy = DQNPolicy(None, BOX, DISCRETE)
    state = policy.state_dict()
    state["optimizer"]["param_groups"][0][name] = value
    with pytest.raises(StateDictError, match=message):
        policy.load_state_dict(state)
    assert policy.optimizer.param_groups[0]["lr"] == policy.cfg.learn.learning_rate
