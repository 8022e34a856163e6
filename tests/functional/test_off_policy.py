"""Off-policy estimators: against naive loops, and against the exact values of a small Markov decision process."""

import math

import numpy as np
import pytest
import torch

from ding_lite.functional import doubly_robust, effective_sample_size, importance_sampling, weighted_standard_error

KINDS = pytest.mark.parametrize("per_decision", [True, False], ids=["per decision", "trajectories"])
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
SIZES = pytest.mark.parametrize(("t", "n"), [(6, 4), (1, 3), (1, 1), (5, 1)])


def episodes(seed, t=6, n=4):
    """Random episodes of different lengths, the first one with all steps, and some actions that are never taken."""
    g = torch.Generator().manual_seed(seed)
    log_ratio, reward, q_value, value = torch.randn(4, t, n, generator=g, dtype=torch.float64)
    log_ratio[torch.rand(t, n, generator=g) < 0.1] = -torch.inf
    lengths = torch.randint(1, t + 1, (n,), generator=g)
    lengths[0] = t
    valid = torch.arange(t)[:, None] < lengths
    for padded in (log_ratio, reward, q_value, value):
        padded[~valid] = torch.nan  # padding must not count
    return log_ratio, reward, q_value, value, torch.randn(n, generator=g, dtype=torch.float64), valid


def weights_by_loop(log_ratio, valid, weighted):
    """The weight of each episode after each step, as lists; an episode that has ended keeps its last one."""
    t, n = log_ratio.shape
    weight = [[math.prod(math.exp(log_ratio[k, i]) for k in range(s + 1) if valid[k, i]) for i in range(n)] for s in range(t)]
    return [[one / (sum(row) / n) if sum(row) else 0.0 for one in row] for row in weight] if weighted else weight


def importance_sampling_by_loop(log_ratio, reward, valid, gamma, per_decision, weighted):
    weight = weights_by_loop(log_ratio, valid, weighted)
    t, n = log_ratio.shape
    found = np.zeros(n)
    for i in range(n):
        for s in range(t):
            if valid[s, i]:
                found[i] += (weight[s][i] if per_decision else weight[-1][i]) * gamma**s * reward[s, i]
    return found


def doubly_robust_by_loop(log_ratio, reward, q_value, value, last_value, valid, gamma, weighted):
    weight = weights_by_loop(log_ratio, valid, weighted)
    found = np.zeros(log_ratio.shape[1])
    for i in range(len(found)):
        before, steps = 1.0, int(valid[:, i].sum())
        for s in range(steps):
            found[i] += gamma**s * (before * value[s, i] + weight[s][i] * (reward[s, i] - q_value[s, i]))
            before = weight[s][i]
        found[i] += gamma**steps * before * last_value[i]
    return found


@KINDS
@WEIGHTED
@SIZES
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_importance_sampling_is_its_definition(gamma, t, n, weighted, per_decision):
    for seed in range(3):
        log_ratio, reward, *_, valid = episodes(seed, t, n)
        expected = importance_sampling_by_loop(*(x.numpy() for x in (log_ratio, reward, valid)), gamma, per_decision, weighted)
        found = importance_sampling(log_ratio, reward, valid, gamma=gamma, per_decision=per_decision, weighted=weighted)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@WEIGHTED
@SIZES
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_doubly_robust_is_its_definition(gamma, t, n, weighted):
    for seed in range(3):
        data = episodes(seed, t, n)
        expected = doubly_robust_by_loop(*(x.numpy() for x in data), gamma, weighted)
        found = doubly_robust(*data, gamma=gamma, weighted=weighted)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def test_doubly_robust_is_the_recursion_of_its_paper():
    log_ratio, reward, q_value, value, last_value, valid = episodes(seed=5)
    found = doubly_robust(log_ratio, reward, q_value, value, last_value, valid, gamma=0.9)
    for i, steps in enumerate(valid.sum(0).tolist()):
        estimate = last_value[i].item()
        for s in reversed(range(steps)):
            ratio = math.exp(log_ratio[s, i])
            estimate = value[s, i].item() + ratio * (reward[s, i].item() + 0.9 * estimate - q_value[s, i].item())
        assert found[i].item() == pytest.approx(estimate, rel=1e-11)


@WEIGHTED
def test_doubly_robust_without_values_is_importance_sampling_per_decision(weighted):
    log_ratio, reward, *_, valid = episodes(seed=1)
    nothing = torch.zeros_like(reward)
    found = doubly_robust(log_ratio, reward, nothing, nothing, nothing[0], valid, gamma=0.9, weighted=weighted)
    torch.testing.assert_close(found, importance_sampling(log_ratio, reward, valid, gamma=0.9, weighted=weighted))


@KINDS
@WEIGHTED
def test_the_policy_that_collected_has_the_mean_return_of_its_episodes(weighted, per_decision):
    log_ratio, reward, q_value, value, _, valid = episodes(seed=2)
    same = torch.zeros_like(log_ratio)
    discounts = 0.9 ** torch.arange(len(reward), dtype=torch.float64)[:, None]
    expected = (discounts * reward.masked_fill(~valid, 0)).sum(0)
    found = importance_sampling(same, reward, valid, gamma=0.9, per_decision=per_decision, weighted=weighted)
    torch.testing.assert_close(found, expected)
    assert effective_sample_size(same, valid).item() == pytest.approx(4)


@WEIGHTED
def test_right_values_leave_nothing_to_weigh(weighted):
    """Where each step is certain, the weighted sum of TD errors is 0, whatever the ratios and the ends of episodes are."""
    log_ratio, reward, _, value, last_value, valid = episodes(seed=3)
    log_ratio = log_ratio.clamp(min=-3)
    last = torch.arange(len(reward))[:, None] == valid.sum(0) - 1
    next_value = torch.where(last, last_value, torch.cat((value[1:], value[:1])))
    found = doubly_robust(log_ratio, reward, reward + 0.9 * next_value, value, last_value, valid, gamma=0.9, weighted=weighted)
    assert found.mean().item() == pytest.approx(value[0].mean().item(), rel=1e-11)
    if not weighted:
        torch.testing.assert_close(found, value[0])


class TestLargeRatios:
    """Products of ratios that no float can hold."""

    reward = torch.ones(300, 2)

    @KINDS
    @WEIGHTED
    @pytest.mark.parametrize("per_step", [60.0, -60.0, 1e30, -1e30, -torch.inf])
    def test_estimates_are_finite(self, per_step, weighted, per_decision):
        log_ratio = torch.full((300, 2), per_step)
        log_ratio[:, 1] /= 2
        options = {"gamma": 1.0, "weighted": weighted}
        found = importance_sampling(log_ratio, self.reward, per_decision=per_decision, **options)
        assert found.isfinite().all()
        nothing = torch.zeros_like(self.reward)
        assert doubly_robust(log_ratio, self.reward, nothing, nothing, nothing[0], **options).isfinite().all()
        assert 0 <= effective_sample_size(log_ratio).item() <= 2 + 1e-9

    @pytest.mark.parametrize("per_step", [60.0, -60.0])
    def test_normalised_weights_are_exact(self, per_step):
        """Of equal products far beyond the range of floats, each has the weight 1; of unequal ones, the larger one has all."""
        log_ratio = torch.full((300, 2), per_step)
        found = importance_sampling(log_ratio, self.reward, gamma=1.0, weighted=True)
        assert found.tolist() == pytest.approx([300.0, 300.0])
        assert effective_sample_size(log_ratio).item() == pytest.approx(2)
        log_ratio[0, 0] += 50
        assert importance_sampling(log_ratio, self.reward, gamma=1.0, weighted=True).tolist() == pytest.approx([600.0, 0.0])
        assert effective_sample_size(log_ratio).item() == pytest.approx(1)

    def test_actions_that_are_never_taken_have_the_value_0(self):
        never = torch.full((300, 2), -torch.inf)
        for weighted in (False, True):
            assert importance_sampling(never, self.reward, gamma=1.0, weighted=weighted).tolist() == [0.0, 0.0]
        assert effective_sample_size(never).item() == 0


class TestRefused:
    one = torch.zeros(2, 3)

    @pytest.mark.parametrize("ratio", [torch.inf, torch.nan])
    def test_an_action_that_was_collected_with_the_probability_0(self, ratio):
        log_ratio = self.one.clone()
        log_ratio[1, 2] = ratio
        valid = torch.ones(2, 3, dtype=torch.bool)
        with pytest.raises(ValueError, match="takes a recorded action with probability 0. Pass the log-probabilities"):
            importance_sampling(log_ratio, self.one, valid, gamma=0.9)
        valid[1, 2] = False
        assert importance_sampling(log_ratio, self.one, valid, gamma=0.9).tolist() == [0.0] * 3

    def test_other_shapes(self):
        with pytest.raises(ValueError, match=r"importance_sampling\(\) wants tensors of one shape.*'reward': \(2,\)"):
            importance_sampling(self.one, self.one[:, 0], gamma=0.9)
        with pytest.raises(ValueError, match=r"doubly_robust\(\) wants tensors of one shape.*'value': \(1, 3\)"):
            doubly_robust(self.one, self.one, self.one, self.one[:1], self.one[0], gamma=0.9)
        with pytest.raises(ValueError, match=r"wants last_value of the shape \[B\] = \(3,\), got \(2, 3\)"):
            doubly_robust(self.one, self.one, self.one, self.one, self.one, gamma=0.9)
        with pytest.raises(ValueError, match="with a step and an episode at least"):
            effective_sample_size(torch.zeros(0, 3))

    @pytest.mark.parametrize("rows", [[[True], [False], [True]], [[False], [False], [False]], [[1.0], [1.0], [0.0]]])
    def test_padding_elsewhere(self, rows):
        with pytest.raises(ValueError, match="wants valid as bool, True for all steps of an episode"):
            effective_sample_size(torch.zeros(3, 1), torch.tensor(rows))


class Tabular:
    """A random Markov decision process with 3 states and 2 actions, which ends with probability 0.3 after each step.

    Rewards are random too, with the mean `reward`. The evaluated policy takes the action with the higher one three times out
    of four.
    """

    gamma = 0.9

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.step = self.rng.dirichlet(np.ones(3), (3, 2)) * 0.7
        self.reward, self.start = self.rng.normal(size=(3, 2)), self.rng.dirichlet(np.ones(3))
        self.behaviour = self.rng.dirichlet(np.full(2, 20.0), 3)
        self.evaluated = np.where(self.reward == self.reward.max(1, keepdims=True), 0.75, 0.25)

    def exact(self, policy):
        """V and Q of a policy, by the linear system V = r_pi + gamma * P_pi V."""
        by_policy = np.einsum("sa,san->sn", policy, self.step)
        value = np.linalg.solve(np.eye(3) - self.gamma * by_policy, (policy * self.reward).sum(1))
        return value, self.reward + self.gamma * self.step @ value

    def collect(self, count, longest=30):
        """Episodes of the behaviour policy: states, actions, rewards and valid, [T, B]."""
        found, is_going = [], np.ones(count, bool)
        state = self.rng.choice(3, count, p=self.start)
        for _ in range(longest):
            action = (self.rng.random(count) > self.behaviour[state, 0]).astype(int)
            reward = self.reward[state, action] + self.rng.normal(size=count)
            found.append((state, action, reward, is_going))
            later = self.step[state, action].cumsum(-1)
            drawn = (self.rng.random(count)[:, None] > later).sum(-1)
            is_going, state = is_going & (drawn < 3), np.minimum(drawn, 2)
        return [np.stack(part) for part in zip(*found)]


@pytest.fixture(scope="module", params=[0, 1])
def recorded(request):
    """A tabular process, 20,000 of its episodes, log-ratios, and the exact value of the evaluated policy."""
    process = Tabular(request.param)
    state, action, reward, valid = process.collect(20_000)
    log_ratio = np.log(process.evaluated / process.behaviour)[state, action]
    value = process.exact(process.evaluated)[0] @ process.start
    return process, state, action, *map(torch.from_numpy, (log_ratio, reward, valid)), value


def assert_near(terms, value):
    """The mean is within 4 standard errors, and these are small enough to tell policies apart."""
    error = terms.std().item() / len(terms) ** 0.5
    assert 0 < error < 0.1
    assert abs(terms.mean().item() - value) < 4 * error


@pytest.mark.few
@KINDS
@WEIGHTED
def test_importance_sampling_finds_the_exact_value(recorded, weighted, per_decision):
    process, _, _, log_ratio, reward, valid, value = recorded
    options = {"gamma": process.gamma, "per_decision": per_decision, "weighted": weighted}
    assert_near(importance_sampling(log_ratio, reward, valid, **options), value)
    as_collected = importance_sampling(torch.zeros_like(log_ratio), reward, valid, **options)
    assert_near(as_collected, process.exact(process.behaviour)[0] @ process.start)
    assert abs(as_collected.mean().item() - value) > 0.1  # the policies differ


@pytest.mark.few
@WEIGHTED
@pytest.mark.parametrize("wrong_by", [0.0, 0.3])
def test_doubly_robust_finds_the_exact_value_with_wrong_values_too(recorded, wrong_by, weighted):
    process, state, action, log_ratio, reward, valid, value = recorded
    _, exact_q = process.exact(process.evaluated)
    q_value = exact_q + wrong_by * np.random.default_rng(0).normal(size=exact_q.shape)
    by_state = (process.evaluated * q_value).sum(1)
    values = torch.from_numpy(q_value[state, action]), torch.from_numpy(by_state[state]), torch.zeros(len(valid[0]))
    terms = doubly_robust(log_ratio, reward, *values, valid, gamma=process.gamma, weighted=weighted)
    assert_near(terms, value)
    assert terms.std() < importance_sampling(log_ratio, reward, valid, gamma=process.gamma).std()


def test_right_values_make_up_for_wrong_ratios(recorded):
    process, state, action, log_ratio, reward, valid, value = recorded
    exact_v, exact_q = process.exact(process.evaluated)
    values = torch.from_numpy(exact_q[state, action]), torch.from_numpy(exact_v[state]), torch.zeros(len(valid[0]))
    assert_near(doubly_robust(0.5 * log_ratio, reward, *values, valid, gamma=process.gamma), value)
    assert abs(importance_sampling(0.5 * log_ratio, reward, valid, gamma=process.gamma).mean().item() - value) > 0.05


def test_values_continue_episodes_that_are_cut(recorded):
    """Cut after two steps, the value of the state after them stands for the rest."""
    process, state, action, log_ratio, reward, valid, value = recorded
    exact_v, exact_q = process.exact(process.evaluated)
    last_value = torch.from_numpy(np.where(valid[2], exact_v[state[2]], 0))
    values = torch.from_numpy(exact_q[state, action])[:2], torch.from_numpy(exact_v[state])[:2], last_value
    for weighted in (False, True):
        terms = doubly_robust(log_ratio[:2], reward[:2], *values, valid[:2], gamma=process.gamma, weighted=weighted)
        assert_near(terms, value)


@pytest.mark.few
@KINDS
def test_weighted_importance_sampling_is_consistent_and_varies_less(recorded, per_decision):
    """From one episode it has the return of the behaviour policy; its error goes to 0 as there are more episodes."""
    process, _, _, log_ratio, reward, valid, value = recorded
    errors, spread = {}, {}
    for size in (1, 20, 1000):
        for weighted in (False, True):
            found = [
                importance_sampling(
                    *(x[:, begin : begin + size] for x in (log_ratio, reward, valid)),
                    gamma=process.gamma,
                    per_decision=per_decision,
                    weighted=weighted,
                ).mean()
                for begin in range(0, min(20_000, 120 * size), size)
            ]
            found = torch.stack(found)
            errors[size, weighted] = (found - value).square().mean().sqrt().item()
            spread[size, weighted] = found.std().item()
    assert errors[1000, True] < errors[20, True] / 4 < errors[1, True] / 8
    assert spread[20, True] < spread[20, False]


def test_the_effective_sample_size_is_its_definition():
    log_ratio, *_, valid = episodes(seed=0)
    weight = np.array(weights_by_loop(log_ratio.numpy(), valid.numpy(), weighted=False)[-1])
    assert effective_sample_size(log_ratio, valid).item() == pytest.approx(weight.sum() ** 2 / (weight**2).sum(), rel=1e-11)


def test_a_weight_above_1e100_counts_as_1e100():
    log_ratio = torch.tensor([[99.0, 101.0, 1000.0]], dtype=torch.float64) * math.log(10)
    found = importance_sampling(log_ratio, torch.ones(1, 3), gamma=1.0)

    assert found.tolist() == pytest.approx([1e99, 1e100, 1e100], rel=1e-9)


def many(seed=0, t=5, n=400):
    """Episodes of similar policies, so that many of them have weight."""
    log_ratio, reward, q_value, value, last_value, valid = episodes(seed, t, n)
    return (0.3 * log_ratio).clamp(min=-5), reward, q_value, value, last_value, valid


def by_jackknife(estimate, n):
    """The standard error of an estimate from n episodes, by leaving out one at a time: shares no code with the delta method."""
    found = np.array([estimate(torch.arange(n) != left_out) for left_out in range(n)])
    return math.sqrt((n - 1) / n * ((found - found.mean()) ** 2).sum())


@pytest.mark.few
@KINDS
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_the_weighted_standard_error_is_that_of_the_jackknife(gamma, per_decision):
    log_ratio, reward, *_, valid = many()

    def estimate(kept):
        left = (log_ratio[:, kept], reward[:, kept], valid[:, kept])
        return importance_sampling(*left, gamma=gamma, per_decision=per_decision, weighted=True).mean().item()

    found = weighted_standard_error(log_ratio, reward, valid, gamma=gamma, per_decision=per_decision).item()
    assert found == pytest.approx(by_jackknife(estimate, reward.shape[1]), rel=0.03)


def test_so_is_that_of_the_weighted_doubly_robust_estimate():
    log_ratio, reward, q_value, value, last_value, valid = many()

    def estimate(kept):
        steps = [one[:, kept] for one in (log_ratio, reward, q_value, value)]
        return doubly_robust(*steps, last_value[kept], valid[:, kept], gamma=0.9, weighted=True).mean().item()

    later = torch.cat((value[1:], value[:1]))
    for i, length in enumerate(valid.sum(0)):
        later[length - 1, i] = last_value[i]
    gained = reward - q_value + 0.9 * later
    found = weighted_standard_error(log_ratio, gained, valid, value[0], gamma=0.9).item()
    assert found == pytest.approx(by_jackknife(estimate, reward.shape[1]), rel=0.03)


def test_of_one_step_it_is_the_closed_form_of_a_ratio():
    log_ratio, reward = torch.randn(2, 1, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = log_ratio.exp()
    ratio = (weight * reward).sum() / weight.sum()
    expected = ((weight * (reward - ratio)).square().sum() * 50 / 49).sqrt() / weight.sum()

    torch.testing.assert_close(weighted_standard_error(log_ratio, reward, gamma=0.9), expected, rtol=1e-12, atol=0)


@KINDS
def test_of_the_policy_that_collected_it_is_that_of_the_mean_return(per_decision):
    _, reward, *_, valid = many()
    returns = (reward.masked_fill(~valid, 0) * 0.9 ** torch.arange(5.0, dtype=torch.float64)[:, None]).sum(0)
    found = weighted_standard_error(torch.zeros_like(reward), reward, valid, gamma=0.9, per_decision=per_decision)

    if not per_decision:
        torch.testing.assert_close(found, returns.std() / 20, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, returns.std() / 20)


def test_one_episode_has_no_standard_error():
    assert weighted_standard_error(torch.zeros(2, 1), torch.ones(2, 1), gamma=0.9).isnan()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["reward", "q_value", "value", "last_value"])
def test_numbers_that_are_not_finite_are_refused_by_name(name, wrong):
    tensors = dict(zip(("log_ratio", "reward", "q_value", "value", "last_value", "valid"), many(n=6)))
    tensors[name] = tensors[name].clone()
    tensors[name][..., 0] = wrong
    with pytest.raises(ValueError, match=rf"doubly_robust\(\) found {name} = {wrong}"):
        doubly_robust(**tensors, gamma=0.9)
    if name == "reward":
        for function in (importance_sampling, weighted_standard_error):
            with pytest.raises(ValueError, match=rf"{function.__name__}\(\) found reward = {wrong}"):
                function(tensors["log_ratio"], tensors["reward"], tensors["valid"], gamma=0.9)
