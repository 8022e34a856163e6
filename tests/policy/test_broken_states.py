"""Each entry of a policy's state is looked at for kind, shape, finiteness and range, and an error names its key."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from slow_cases import mostly_slow
from torch.optim import Optimizer

import ding_lite.policy
from ding_lite.basics import save_checkpoint
from ding_lite.config import PPOConfig
from ding_lite.engine import ConfigError
from ding_lite.middleware import reward_normalizer
from ding_lite.nn import RunningNorm
from ding_lite.policy import BoxActionMixin, DQNPolicy, NonFiniteError, PPOPolicy, SACPolicy, load_policy
from ding_lite.policy_state import StateDictError

KINDS = [
    getattr(ding_lite.policy, name)
    for name in ding_lite.policy.__all__
    if name.endswith("Policy") and name not in ("GreedyActionModule", "Policy")
]
BOX, DISCRETE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
VALUES = (None, "x", math.nan, math.inf, -1, 10**400, [], {}, object())
EVERY = {"config": len(VALUES), "observation_space": 3, "action_space": 3}
"""Parts of `made_with` whose fields have the same checks, so that a place there gets only each so many-th value."""


def made(kind, seed=0, **settings):
    """A small policy that has moments, random numbers drawn ahead and a normaliser of rewards."""
    actions = BOX if issubclass(kind, BoxActionMixin) else DISCRETE
    small = {
        "model.encoder_hidden_size_list": [3],
        "model.head_hidden_size_list": [],
        "model.normalize_obs": True,
        "seed": seed,
    }
    has = vars(kind.config_type().model)
    settings = {name: value for name, value in small.items() if name == "seed" or name.partition(".")[2] in has} | settings
    policy = kind(settings, BOX, actions)
    for optimizer in [value for value in vars(policy).values() if isinstance(value, Optimizer)]:
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.ones_like(param)
        optimizer.step()
    if policy.acting_settings:
        policy.collect_mode.actor.exploration.mix(np.zeros(2, np.int64), 0.5)
    reward_normalizer(PPOConfig(), policy.learn_mode)
    return policy


def leaves(value, path=()):
    """Every entry with its place; of each list, and of alike parts such as the moments of parameters, the first alone."""
    yield path, value
    if isinstance(value, dict):
        names = list(value)
        alike = path[-1:] in (("model",), ("target_model",)) or (len(path) > 1 and path[-2:] == ("optimizer", "state"))
        for name in names[:1] + [name for name in names if "normalizer" in str(name)] if alike else names:
            yield from leaves(value[name], (*path, name))
    elif isinstance(value, (list, tuple)) and value:
        yield from leaves(value[0], (*path, 0))


def with_entry(state, path, value):
    if not path:
        return value
    changed = list(state) if isinstance(state, (list, tuple)) else dict(state)
    changed[path[0]] = with_entry(state[path[0]], path[1:], value)
    return tuple(changed) if isinstance(state, tuple) else changed


def is_legal(policy, path, value):
    """Whether loading may take this value there."""
    if path == ("metrics", "stats") and value == []:  # no metrics
        return True
    if path == ("made_with", "class") and (value is None or isinstance(value, str)):  # only load_policy reads it
        return True
    if path == ("optimizer", "made", 0, "lr_schedule"):  # without a schedule
        return value is None
    if path == ("made_with", "derived_from", 0) and isinstance(value, str):  # nobody asks for it if the algorithm is the same
        return True
    last = path[-1]
    if path[:2] == ("made_with", "config"):
        config = copy.deepcopy(policy.cfg)
        place = list(path[2:])
        while len(place) > 1 and hasattr(getattr(config, place[0]), "to_dict"):
            config = getattr(config, place.pop(0))
        try:
            whole = with_entry(getattr(config, place[0]), place[1:], value) if place else None
            setattr(config, place[0] if place else "config", whole)
        except ConfigError:
            return value == {} and (last == "config" or hasattr(getattr(config, str(last), None), "to_dict"))
        return True
    if path[:2] == ("made_with", "observation_space") and last in ("low", "high"):
        return isinstance(value, (int, float)) and abs(value) <= math.inf and value != 10**400
    return (last, value) in (
        ("attached", {}),  # something may be attached since
        ("drawn", []),
        ("entropy_coeff", -1),
        ("fused", None),
        ("foreach", None),
        ("settings", {}),
        ("derived_from", []),
    )


def plain(value):
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value


def refusal(policy, state):
    """The error that loading raises; None where the state is taken."""
    try:
        policy.load_state_dict(state)
    except Exception as error:  # noqa: BLE001  its kind is what the test asks
        return error
    return None


@functools.cache
def tries():
    """Of each kind, the places and values that it tries: each place gets each value from one of the kinds that have it.

    A place whose neighbours have the same checks gets fewer; see EVERY.
    """
    kinds_at, found = {}, {kind: [] for kind in KINDS}
    for kind in KINDS:
        for path, current in leaves(made(kind).state_dict()):
            if path and path[0] not in ("learn", "evaluate"):  # as in "collect"
                kinds_at.setdefault(path, []).append((kind, current))
    for number, (path, owners) in enumerate(kinds_at.items()):
        every = next((step for place, step in EVERY.items() if path[:2] == ("made_with", place)), 1)
        values = VALUES[number % every :: every]
        for value in values:
            kind, current = min(owners, key=lambda owner: len(found[owner[0]]))
            is_same = isinstance(value, (int, float)) and type(current) in (int, float) and value == current
            if not is_same:
                found[kind].append((path, value))
    return found


@pytest.mark.few
@pytest.mark.parametrize("kind", mostly_slow(KINDS, DQNPolicy, PPOPolicy, SACPolicy), ids=lambda kind: kind.__name__)
def test_a_broken_entry_of_a_state_is_refused_and_the_error_names_its_key(kind):
    state, policy = made(kind).state_dict(), made(kind, seed=3)
    before, tried = plain(policy.state_dict()), tries()[kind]
    assert len(tried) > 30
    for path, value in tried:
        if is_legal(policy, path, value):
            continue
        error = refusal(policy, with_entry(state, path, value))
        keys = [name for name in path if isinstance(name, str)]
        assert isinstance(error, StateDictError), (path, value, error)
        assert keys[-1] in str(error) or path[0] == "made_with", (path, value, error)
    assert plain(policy.state_dict()) == before
    policy.load_state_dict(state)


def without_entry(state, path):
    if len(path) == 1:
        return {name: part for name, part in state.items() if name != path[0]}
    return {**state, path[0]: without_entry(state[path[0]], path[1:])}


@pytest.mark.slow
def test_a_broken_record_of_how_a_policy_was_made_is_refused_by_load_policy(tmp_path):
    whole = made(DQNPolicy).state_dict()
    state = {"model": whole["model"], "made_with": {**whole["made_with"], "config_class": None}}
    path, places = tmp_path / "best.pt", [place for place, _ in leaves(state) if place[:1] == ("made_with",)]
    broken = [with_entry(state, place, value) for place in places for value in (None, "", -1, [], {1: 2}, torch.zeros(2))]
    broken += [without_entry(state, place) for place in places if isinstance(place[-1], str) and place[1:2] != ("config",)]
    broken += [with_entry(state, ("made_with", "class"), value) for value in (":", "..x:y", "os:path", "os:path.join.x")]
    broken += [with_entry(state, ("made_with", "config_class"), value) for value in ("", "..x:y", "os:path")]
    refused = 0
    for one in broken:
        save_checkpoint(one, path)
        try:
            load_policy(path)
        except StateDictError as error:
            refused += str(path) in str(error)
    assert refused > 0.8 * len(broken)  # some values are allowed, such as {} for a section with its defaults


@pytest.mark.few
@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            ("collect", "exploration", "eps"),
            math.nan,
            r"state\['collect'\]\['exploration'\]\['eps'\] holds nan, expected a number",
        ),
        (("learn", "exploration", "eps"), math.inf, r"state\['learn'\]\['exploration'\]\['eps'\] holds inf, .*at most 1"),
        (("collect", "exploration", "eps"), 0, r"\['eps'\] is 0 although random numbers were drawn, expected a number above 0"),
        (("collect", "exploration"), {}, r"\['exploration'\] is {}, expected a dict with \['eps', 'drawn'\]"),
        (("collect", "exploration", "drawn", 0, 0), 1.0, r"\['drawn'\] is .*, expected a list of rows of numbers in \[0, 1\)"),
        (("collect", "rng", "state", "inc"), "7", r"\['rng'\]\['state'\]\['inc'\] is '7', expected an integer from 0"),
        (("collect", "rng", "state", "inc"), 6, r"\['rng'\]\['state'\]\['inc'\] is 6, expected an odd number"),
        (("collect", "rng", "has_uint32"), 2, r"\['has_uint32'\] is 2, expected an integer from 0 to 1"),
        (
            ("evaluate", "generator"),
            torch.zeros(4),
            r"\['generator'\] is float32 \[4\] and not valid .*expected the state of a torch.Generator, .*uint8 \[.*: pass",
        ),
        (("evaluate", "action_space"), {"state": 3}, r"state\['evaluate'\]\['action_space'\] has no 'bit_generator', only"),
        (("collect",), {"twins": 3}, r"state\['collect'\]\['twins'\] is 3, expected a list of the states of workers"),
        (("version",), 2**63, r"state\['version'\] is 9223372036854775808, expected an integer from 0"),
        (
            ("made_with", "config", "learn", "batch_size"),
            -1,
            r"\['learn'\]\['batch_size'\] is -1, which is not allowed \(.*at least 1",
        ),
        (("made_with", "config", "learn"), 3, r"\[.config.\]\['learn'\] is 3, which is not allowed \("),
        (
            ("made_with", "observation_space", "low"),
            [1.0, 2.0, 3.0],
            r"\['low'\] is \[1.0, 2.0, 3.0\], expected a number, or an array",
        ),
        (("optimizer", "param_groups", 0, "params", 0), torch.zeros(2), r"\['params'\] is \[tensor.*, expected \[0, 1"),
        (("optimizer", "kept"), [], r'"kept"\] is \[\], but state\["optimizer"\]\["state"\] also has an entry 0'),
        (
            ("attached", "reward_normalizer", "var"),
            torch.tensor(-1.0).double(),
            r"\['var'\] holds -1.0, expected a tensor, .* at least 0",
        ),
        (("attached", "reward_normalizer", "count"), None, r"\['count'\] is None of type NoneType, expected a tensor"),
    ],
)
def test_an_entry_that_is_out_of_its_range_is_named_with_what_is_wanted(path, value, words):
    state, policy = made(DQNPolicy).state_dict(), made(DQNPolicy, seed=3)
    before = plain(policy.state_dict())
    with pytest.raises(StateDictError, match=words):
        policy.load_state_dict(with_entry(state, path, value))

    assert plain(policy.state_dict()) == before


@pytest.mark.parametrize("name", ["var", "count"])
def test_variances_and_counts_of_observations_are_not_negative(name):
    state, policy = made(PPOPolicy).state_dict(), made(PPOPolicy, seed=3)
    broken = with_entry(state, ("model", f"normalizer.{name}"), torch.full_like(state["model"][f"normalizer.{name}"], -1))
    with pytest.raises(StateDictError, match=rf"'normalizer.{name}' holds -1.0, expected a tensor, finite, at least 0"):
        policy.load_state_dict(broken)
    with pytest.raises(StateDictError, match=rf"'normalizer.{name}' holds -1.0"):
        policy.set_weights(broken["model"])


def test_statistics_of_torchs_own_batch_norm_and_of_a_policys_own_modules_have_ranges_too():
    class Own(torch.nn.Module):
        state_ranges = {"least": (2.0, math.inf)}

        def __init__(self):
            super().__init__()
            self.register_buffer("least", torch.tensor(3.0))

    policy = made(DQNPolicy)
    policy.attach("norm", torch.nn.Sequential(torch.nn.BatchNorm1d(2), RunningNorm((2,)), Own()))
    state = policy.state_dict()
    for name in ("0.running_var", "0.num_batches_tracked", "1.var", "2.least"):
        negative = torch.full_like(state["attached"]["norm"][name], -1)
        with pytest.raises(StateDictError, match=rf"state\[.attached.\]\['norm'\]\['{name}'\] holds -1"):
            policy.load_state_dict(with_entry(state, ("attached", "norm", name), negative))


def test_two_mixins_each_keep_the_range_of_their_own_entry():
    policy = made(PPOPolicy)
    for name, value in (("kl_coeff", -1.0), ("kl_coeff", math.inf), ("entropy_coeff", math.nan), ("entropy_coeff", None)):
        with pytest.raises(StateDictError, match=rf"state\['{name}'\] "):
            policy.load_state_dict({**policy.state_dict(), name: value})
    policy.load_state_dict({**policy.state_dict(), "kl_coeff": 0.5, "entropy_coeff": -0.5})

    assert (policy.kl_coeff, policy.entropy_coeff) == (0.5, -0.5)


@pytest.mark.parametrize("eps", [math.nan, -0.5, 1.5, math.inf])
def test_an_eps_that_is_no_probability_is_refused_where_it_is_used(eps):
    policy = made(DQNPolicy)
    with pytest.raises(ValueError, match=rf"eps is {eps}, expected a probability, a number in \[0, 1\]"):
        policy.collect_mode.forward(np.zeros((2, 2), np.float32), eps=eps)


def test_first_weights_that_are_not_finite_are_named():
    policy = PPOPolicy(None, spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    with torch.no_grad():
        policy.params[0].view(-1)[0] = float("nan")
    for use in (policy.state_dict, policy.snapshot):
        with pytest.raises(NonFiniteError, match="the first weights of PPOPolicy are not finite: initialise"):
            use()
