"""Distributions over the actions of every space against torch.distributions, and their draws against the space and chance."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions

from ding_lite.data import flatten
from ding_lite.envs import SpaceError
from ding_lite.nn import ActionDistribution, ParametrizedDistribution, action_distribution

N = 7
ANY = np.inf


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-ANY, ANY, shape, np.float32)


SPACES = {
    "one of n": spaces.Discrete(4),
    "one of n from 3": spaces.Discrete(4, start=3),
    "one of one": spaces.Discrete(1),
    "several": spaces.MultiDiscrete([2, 3, 4]),
    "a matrix of several with starts": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, -1], [5, 2]]),
    "bits": spaces.MultiBinary(3),
    "a matrix of bits": spaces.MultiBinary((2, 2)),
    "a vector": box(3),
    "a matrix": box(2, 3),
    "a number": box(),
    "parts": spaces.Dict({"keys": spaces.Discrete(3, start=1), "a.b": box(2)}),
    "parts of parts": spaces.Tuple((
        spaces.Discrete(2),
        spaces.Dict({"z": spaces.MultiBinary(2), "a": spaces.Tuple((box(2), spaces.MultiDiscrete([2, 3])))}),
    )),
}  # fmt: skip
FINITE = [name for name, space in SPACES.items() if "Box" not in str(space)]
each = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def parts(space: spaces.Space) -> dict | None:
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return {str(i): part for i, part in enumerate(space.spaces)} if isinstance(space, spaces.Tuple) else None


def made(space: spaces.Space, n: int = N, dtype=torch.float64) -> tuple[ActionDistribution, torch.Tensor, torch.Generator]:
    """A distribution with standard deviations unlike 1, numbers for it, and a generator."""
    generator, distribution = torch.Generator().manual_seed(0), action_distribution(space).to(dtype)
    with torch.no_grad():
        for param in distribution.parameters():
            param.copy_(torch.linspace(-0.7, 0.4, param.numel()))
    return distribution, torch.randn(n, distribution.width, generator=generator, dtype=torch.float64).to(dtype), generator


@torch.no_grad()
def drawn(distribution, logit, generator):
    """An action as a constant, and its log-probability."""
    return distribution.sample(logit, generator)


def by_torch(space, distribution, logit, action) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy [B], from torch.distributions and nothing else."""
    inner = parts(space)
    if inner is not None:
        results, start = [], 0
        for (name, part), module in zip(inner.items(), distribution.parts, strict=True):
            results.append(by_torch(part, module, logit[:, start : start + module.width], action[name]))
            start += module.width
        return sum(log_prob for log_prob, _ in results), sum(entropy for _, entropy in results)
    flat = action.reshape(len(logit), -1)
    if isinstance(space, spaces.Box):
        made_of = [distributions.Normal(logit, distribution.log_std.exp())]
        flat = [flat]
    elif isinstance(space, spaces.MultiBinary):
        made_of, flat = [distributions.Bernoulli(logits=logit)], [flat.to(logit.dtype)]
    else:
        sizes = np.ravel(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n).tolist()
        made_of = [distributions.Categorical(logits=part) for part in logit.split(sizes, -1)]
        flat = (flat - torch.as_tensor(np.ravel(space.start))).unbind(-1)
    log_probs = [one.log_prob(x).reshape(len(logit), -1).sum(-1) for one, x in zip(made_of, flat, strict=True)]
    return sum(log_probs), sum(one.entropy().reshape(len(logit), -1).sum(-1) for one in made_of)


def row(space: spaces.Space, action, b: int):
    """Row b as gymnasium has it."""
    inner = parts(space)
    if inner is None:
        return np.int64(action[b]) if isinstance(space, spaces.Discrete) else np.asarray(action[b].numpy())
    values = {name: row(part, action[name], b) for name, part in inner.items()}
    return tuple(values.values()) if isinstance(space, spaces.Tuple) else values


@each
def test_log_prob_and_entropy_match_torch(space):
    distribution, logit, generator = made(space)
    action, _ = drawn(distribution, logit, generator)
    found, expected = distribution.evaluate(logit, action), by_torch(space, distribution, logit, action)

    for one, other in zip(found, expected, strict=True):
        assert one.shape == (N,)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@each
@pytest.mark.parametrize("which", [0, 1], ids=["log_prob", "entropy"])
def test_log_prob_and_entropy_have_the_gradients_of_torch(space, which):
    distribution, logit, generator = made(space)
    action, _ = drawn(distribution, logit, generator)
    wanted = [logit.requires_grad_(), *distribution.parameters()]
    mine = torch.autograd.grad(distribution.evaluate(logit, action)[which].sum(), wanted, allow_unused=True)
    theirs = torch.autograd.grad(by_torch(space, distribution, logit, action)[which].sum(), wanted, allow_unused=True)

    for one, other in zip(mine, theirs, strict=True):
        zero = torch.zeros((), dtype=torch.float64)
        torch.testing.assert_close(
            one if one is not None else zero, other if other is not None else zero, rtol=1e-12, atol=1e-12
        )


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_log_prob_of_a_sample_is_the_one_that_evaluate_gives(space, dtype):
    distribution, logit, generator = made(space, 50, dtype)
    action, log_prob = drawn(distribution, logit, generator)

    torch.testing.assert_close(
        log_prob, distribution.evaluate(logit, action)[0], rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-6
    )
    assert log_prob.dtype == dtype


@each
def test_samples_and_modes_are_elements_of_the_space(space):
    distribution, logit, generator = made(space, 50, torch.float32)
    for action in (drawn(distribution, logit, generator)[0], distribution.mode(logit)):
        assert all(space.contains(row(space, action, b)) for b in range(50))


@pytest.mark.few
@pytest.mark.parametrize("name", FINITE)
def test_actions_are_drawn_as_often_as_their_probability_says(name):
    n, (distribution, logit, generator) = 20_000, made(SPACES[name], 1)
    logit = 0.3 * logit.expand(n, -1)
    action, log_prob = drawn(distribution, logit, generator)
    actions = action.reshape(n, -1)
    _, first, count = np.unique(actions.numpy(), axis=0, return_index=True, return_counts=True)
    expected = n * log_prob[first].exp().numpy()
    chi_square, freedom = ((count - expected) ** 2 / expected).sum(), max(len(count) - 1, 1)

    np.testing.assert_allclose(expected.sum(), n, rtol=1e-6)  # every action came, and their probabilities sum to one
    assert torch.special.gammaincc(torch.tensor(freedom / 2), torch.tensor(chi_square / 2)) > 1e-3


def test_gaussian_actions_have_the_mean_and_standard_deviation_asked_for():
    n, (distribution, logit, generator) = 40_000, made(SPACES["a matrix"], 1)
    action = drawn(distribution, logit.expand(n, -1), generator)[0].reshape(n, -1)
    std = distribution.log_std.exp().detach()

    assert ((action.mean(0) - logit[0]).abs() < 4 * std / n**0.5).all()
    assert ((action.std(0) / std - 1).abs() < 4 / (2 * n) ** 0.5).all()
    correlation = torch.corrcoef(action.T) - torch.eye(6)
    assert correlation.abs().max() < 4 / n**0.5


def test_parts_are_drawn_independently_of_each_other():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiBinary(1), "c": spaces.Discrete(2)})
    distribution, _, generator = made(space)
    action, _ = distribution.sample(torch.zeros(16_000, distribution.width), generator)
    count = torch.bincount(action["a"] * 4 + action["b"][:, 0] * 2 + action["c"], minlength=8)

    assert ((count - 2000.0) ** 2 / 2000).sum() < 24.3  # chi-square of 7 degrees of freedom passes it once in 1000


@each
def test_no_sample_is_more_probable_than_the_mode(space):
    distribution, logit, generator = made(space)
    best = distribution.evaluate(logit, distribution.mode(logit))[0]
    for _ in range(20):
        assert (drawn(distribution, logit, generator)[1] <= best + 1e-12).all()


@each
def test_the_generator_decides_the_sample_and_the_global_one_is_untouched(space):
    before = torch.get_rng_state()
    distribution, logit, _ = made(space)
    one, again, other = (distribution.sample(logit, torch.Generator().manual_seed(seed))[1] for seed in (1, 1, 2))

    assert torch.equal(one, again)
    assert space == SPACES["one of one"] or not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_actions_that_are_ruled_out_are_never_drawn_and_leave_the_entropy_finite():
    distribution, _, generator = made(SPACES["one of n"])
    logit = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]], dtype=torch.float64).expand(500, -1)
    action, _ = drawn(distribution, logit, generator)
    expected = distributions.Categorical(logits=logit).entropy()

    assert set(action.tolist()) == {0, 2}
    torch.testing.assert_close(distribution.evaluate(logit, action)[1], expected, rtol=1e-12, atol=0)


def test_the_order_of_the_names_of_an_action_does_not_matter():
    space = SPACES["parts"]
    distribution, logit, generator = made(space)
    action, _ = drawn(distribution, logit, generator)
    reordered = dict(reversed(action.items()))

    assert torch.equal(distribution.evaluate(logit, action)[0], distribution.evaluate(logit, reordered)[0])


@pytest.mark.parametrize("space", [spaces.Box(0, 255, (3,), np.uint8), spaces.Text(4), spaces.Sequence(spaces.Discrete(2)),
                                   spaces.Dict({"ok": spaces.Discrete(2), "bad": spaces.Text(4)})])  # fmt: skip
def test_a_space_without_a_distribution_is_refused(space):
    with pytest.raises(
        SpaceError, match=r"no distribution over actions of .*use Discrete, MultiDiscrete, MultiBinary, a float Box"
    ):
        action_distribution(space)


def oracle_kl(space: spaces.Space, logit: torch.Tensor, other: torch.Tensor, log_std: list[torch.Tensor]) -> torch.Tensor:
    """torch's own divergences, part by part; `log_std` are those of the Gaussians, in order."""
    inner = parts(space)
    if inner is not None:
        total, start = torch.zeros(len(logit), dtype=logit.dtype), 0
        for part in inner.values():
            width = action_distribution(part).width
            total = total + oracle_kl(part, logit[:, start : start + width], other[:, start : start + width], log_std)
            start += width
        return total
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.ravel().tolist()
        pairs = zip(logit.split(sizes, -1), other.split(sizes, -1))
        kind = distributions.Categorical
        return sum(distributions.kl_divergence(kind(logits=p), kind(logits=q)) for p, q in pairs)
    if isinstance(space, spaces.Box):
        std = log_std.pop(0).exp()
        return distributions.kl_divergence(distributions.Normal(logit, std), distributions.Normal(other, std)).sum(-1)
    kind = distributions.Categorical if isinstance(space, spaces.Discrete) else distributions.Bernoulli
    found = distributions.kl_divergence(kind(logits=logit), kind(logits=other))
    return found if isinstance(space, spaces.Discrete) else found.sum(-1)


@each
def test_the_divergence_is_torchs(space):
    distribution, logit, generator = made(space)
    other = torch.randn(logit.shape, generator=generator, dtype=logit.dtype)
    expected = oracle_kl(space, logit, other, list(distribution.parameters()))

    torch.testing.assert_close(distribution.kl(logit, other), expected.reshape(N), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(distribution.kl(logit, logit), torch.zeros(N, dtype=logit.dtype), rtol=0, atol=1e-12)


@each
def test_a_bound_distribution_is_the_distribution_with_its_numbers(space):
    distribution, logit, generator = made(space)
    bound, other = ParametrizedDistribution(distribution, logit), ParametrizedDistribution(distribution, logit + 0.1)
    action, log_prob = drawn(distribution, logit, torch.Generator().manual_seed(5))
    again = bound.sample(torch.Generator().manual_seed(5))

    assert all(torch.equal(one, two) for (_, one), (_, two) in zip(flatten(action), flatten(again)))
    torch.testing.assert_close(bound.logp(action), log_prob)
    assert torch.equal(bound.log_prob(action), bound.logp(action))
    assert torch.equal(bound.entropy(), distribution.evaluate(logit, action)[1])
    assert torch.equal(bound.kl(other), distribution.kl(logit, logit + 0.1))
    assert all(torch.equal(one, two) for (_, one), (_, two) in zip(flatten(bound.mode()), flatten(distribution.mode(logit))))
