"""Decision Transformer: imitate the actions of a dataset given the return that followed, and act by asking for a high return.

Chen et al. (2021), https://arxiv.org/abs/2106.01345.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ding_lite.basics import Config, di_engine_settings, ranged_field
from ding_lite.data import Tree, flatten, nested, tree
from ding_lite.data.trees import first_leaf, has_leaf, map_leaves, merge_leading_dims, with_leaves
from ding_lite.functional import masked_mean
from ding_lite.nn import DecisionTransformer, clip_actions, masked
from ding_lite.policy.bc import imitation_errors
from ding_lite.policy_base import LearnConfig, Policy, PolicyConfig
from ding_lite.policy_check import dummy_elements
from ding_lite.policy_parts import LearningRateScheduleMixin
from ding_lite.run_configs import OfflineEnvConfig, OfflineRunConfig

_AS_COMPUTED: tuple[()] = ()


@dataclasses.dataclass
class DecisionTransformerModelConfig(Config):
    """The transformer."""

    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.TRANSFORMER
    fixed_settings = dict.fromkeys(("*",), "the networks are made with it: make a new policy.")

    size: int = ranged_field(64, low=1, high=16_384)
    """Width of the tokens; a multiple of heads."""

    layers: int = ranged_field(2, low=1, high=100)
    """Number of transformer blocks."""

    heads: int = ranged_field(1, low=1, high=1024)
    """Attention heads of each block."""

    longest: int = ranged_field(1000, low=1, high=10_000_000)
    """Steps of the longest episode."""

    conv_layers: list[tuple[int, int, int]] | None = ranged_field(None, low=1, high=16_384)
    """For images: (channels, kernel size, stride) of each convolution; None chooses by image size."""

    normalize_obs: bool = True
    """Normalise observations to mean 0 and standard deviation 1, by running statistics of the batches learned from. Images,
    bytes and discrete parts are not normalised."""


@dataclasses.dataclass
class DecisionTransformerLearnConfig(LearnConfig):
    """Learning."""

    learning_rate: float = ranged_field(1e-3, low=0)
    """Learning rate of the optimizer."""

    grad_clip_norm: float | None = ranged_field(0.25, low=0, finite=False)
    """Clip the gradient to this norm; None for no clipping."""


@dataclasses.dataclass
class DecisionTransformerPolicyConfig(PolicyConfig):
    """Decision Transformer."""

    fixed_settings: ClassVar[Mapping[str, str]] = {
        "context_length": "the windows of the dataset have this length: start a new run.",
        "target_return": "the acting copies, which may be in worker processes, have it: start a new run.",
        "return_scale": "what the network has learned depends on it: start a new run.",
    }

    context_length: int = ranged_field(10, low=1, high=16_384)
    """Steps that an action depends on, including the current one."""

    target_return: float = ranged_field(500.0)
    """The return of an episode to ask for, undiscounted."""

    return_scale: float = ranged_field(100.0, low=1e-8)
    """Returns are divided by this number, so that they are about 1 to 10."""

    model: DecisionTransformerModelConfig = dataclasses.field(default_factory=DecisionTransformerModelConfig)  # type: ignore[assignment]
    """The transformer."""

    learn: DecisionTransformerLearnConfig = dataclasses.field(default_factory=DecisionTransformerLearnConfig)
    """Learning."""


@dataclasses.dataclass
class DecisionTransformerConfig(OfflineRunConfig):
    """Decision Transformer, on CartPole-v1."""

    exp_name: str = "runs/decision_transformer"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: DecisionTransformerPolicyConfig = dataclasses.field(default_factory=DecisionTransformerPolicyConfig)
    """The algorithm."""


_MUJOCO = {
    "context_length": 20,
    "target_return": 3600.0,
    "return_scale": 1000.0,
    "model": {"size": 128, "layers": 3},
    "learn.learning_rate": 1e-4,
    "eval.evaluator.eval_freq": 5000,
}


@dataclasses.dataclass
class DecisionTransformerMuJoCoConfig(DecisionTransformerConfig):
    """Decision Transformer, on Hopper-v5 and other tasks of MuJoCo, with the sizes of Chen et al. (2021).

    There is no dropout, and no weight decay.
    """

    exp_name: str = "runs/decision_transformer_mujoco"
    """Folder of the run, for metrics, configuration and checkpoints."""

    dataset: str | list[str] = "datasets/hopper_replay"
    """The dataset: its folder; a dataset of Minari, by its folder or id; or an HDF5 file in the layout of D4RL. Several are
    used as one."""

    max_step: int = ranged_field(100_000, low=1)
    """Maximum number of iterations. Each takes one gradient step."""

    env: OfflineEnvConfig = dataclasses.field(
        default_factory=lambda: OfflineEnvConfig.default("Hopper-v5", evaluator_env_num=10, n_evaluator_episode=10)
    )
    """Environments, for evaluation."""

    policy: DecisionTransformerPolicyConfig = dataclasses.field(
        default_factory=lambda: DecisionTransformerPolicyConfig().override(_MUJOCO)
    )
    """The algorithm."""


class DecisionTransformerPolicy(LearningRateScheduleMixin, Policy):
    """Decision Transformer, for actions and observations of any space.

    It learns from windows of `context_length` steps, see `OfflineDataset.windows`. Its recurrent state holds the last steps of
    the episode: observations, actions as the environment got them, returns-to-go and their number. `predict` wants the last
    reward too, `predict(obs, state, prev_reward_batch=reward)`; without it and with a state, it raises an error. If the
    environment got another action than the one that `predict` returned, pass it as prev_action_batch. `predict(obs,
    target_return=300)`, at the start of an episode, asks for another return than `policy.target_return`.
    """

    config_type = DecisionTransformerPolicyConfig
    cfg: DecisionTransformerPolicyConfig
    learns_from = "transitions"
    derived: ClassVar[Mapping[str, tuple[int, ...]]] = {}

    def make_model(self) -> nn.Module:
        """Make the transformer.

        Raises:
            ValueError: model.size is not a multiple of model.heads.
        """
        model: Any = self.cfg.model
        if model.size % model.heads:
            raise ValueError(
                f"model.size = {model.size} is not a multiple of model.heads = {model.heads}: each head has an equal part of "
                "the width."
            )
        sizes = model.size, model.layers, model.heads, model.longest, model.normalize_obs
        return DecisionTransformer(self.observation_space, self.action_space, *sizes, conv_layers=model.conv_layers)

    def get_initial_state(self) -> list[Any]:
        """The last context_length - 1 steps before an episode, which are not used: observations, actions and returns-to-go; the
        last return-to-go; and the number of known steps, 0."""
        length = self.cfg.context_length - 1
        steps = {"obs": dummy_elements(self.observation_space, length), "action": dummy_elements(self.action_space, length)}
        leaves = [torch.from_numpy(leaf) for _, leaf in flatten(steps)]
        return [*leaves, torch.zeros(length), torch.zeros(()), torch.zeros((), dtype=torch.int64)]

    def compute_actions(
        self,
        obs: Any,
        state: Sequence[Any] = (),
        *,
        explore: bool = True,
        prev_action_batch: Any = _AS_COMPUTED,
        prev_reward_batch: Any = None,
        target_return: float | None = None,
        **kwargs: Any,
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute actions: sampled if it explores, otherwise the most likely ones.

        Args:
            obs: [B, *obs_shape], nested like the space.
            state: see `get_initial_state`; a batch per element.
            explore: whether to sample.
            prev_action_batch: action of the last step, [B, *action_shape], nested like the space; empty for the one that was
                computed. Numbers of a Box are clipped to their bounds, as they are for the environment.
            prev_reward_batch: reward of the last step, [B].
            target_return: return to ask for in episodes that start here; None for policy.target_return.

        Raises:
            ValueError: target_return is not a finite number.
        """
        wanted: Any = self.cfg.target_return if target_return is None else target_return
        if not isinstance(wanted, numbers.Real) or not math.isfinite(wanted):
            raise ValueError(f"target_return = {wanted!r:.60}: expected the return to ask for, a finite number.")
        if not state:  # the first step of episodes
            batch = len(first_leaf(nested(obs)))
            state = [torch.stack([element] * batch).to(self.device) for element in self.get_initial_state()]
        *known_steps, returns, last_return, known = state
        target = float(wanted) / self.cfg.return_scale
        spent = 0.0 if prev_reward_batch is None else torch.as_tensor(prev_reward_batch, device=self.device).float()
        to_go = torch.where(known == 0, target, last_return - spent / self.cfg.return_scale)
        unknown = map_leaves(torch.from_numpy, dummy_elements(self.action_space, 1))
        count = known.shape[0]  # len() would fix it in an exported program
        actions = map_leaves(lambda leaf: leaf.to(self.device).expand(count, *leaf.shape[1:]), unknown)
        structure = {"obs": nested(obs), "action": actions}
        if self.cfg.context_length > 1 and prev_action_batch is not None and prev_action_batch is not _AS_COMPUTED:
            self._set_last_action(known_steps, prev_action_batch, known)
        past = iter(known_steps)
        window = map_leaves(lambda now: torch.cat([next(past), now.unsqueeze(1)], 1), structure)
        length = self.cfg.context_length
        returns = torch.cat([returns, to_go.unsqueeze(1)], 1)
        age = torch.arange(length - 1, -1, -1, device=self.device)
        valid = age <= known.unsqueeze(1)
        timestep = (known.unsqueeze(1) - age).clamp(min=0)
        logit = masked(self.model(window["obs"], window["action"], returns, timestep, valid)[:, -1], obs)
        action, _, outputs = self.drawn(logit, (), explore)
        taken = clip_actions(self.action_space, nested(action))
        window["action"] = map_leaves(_with_last, window["action"], taken)
        steps = [leaf[:, 1:] for _, leaf in flatten(window)]
        return action, [*steps, returns[:, 1:], to_go, known + 1], outputs

    def _set_last_action(self, known_steps: list[Any], action: Any, known: Tensor) -> None:
        """Replace the last of the actions that are known by the one that the environment got, which may have noise."""
        given = map_leaves(lambda leaf: torch.as_tensor(leaf, device=self.device), nested(action))
        leaves = [leaf for _, leaf in flatten(clip_actions(self.action_space, given))]
        for place, leaf in zip(range(len(known_steps) - len(leaves), len(known_steps)), leaves, strict=True):
            steps = known_steps[place]
            is_known = (known > 0).view(-1, *[1] * (steps.ndim - 1))
            known_steps[place] = torch.where(is_known, _with_last(steps, leaf), steps)

    def dummy_batch(self, batch: Tree) -> Tree:
        """Turn rows [N, ...] of the dummy batch into windows [N, K, ...], by repeating each step."""
        length = self.cfg.context_length
        windows = map_leaves(lambda leaf: torch.stack([leaf] * length, 1), nested(batch))
        like = windows["reward"]
        added = {"valid": torch.ones_like(like, dtype=torch.bool), "timestep": torch.zeros_like(like, dtype=torch.int64)}
        return with_leaves(tree(windows), return_to_go=like, **added)

    def postprocess(self, batch: Tree) -> Tree:
        """The windows.

        Raises:
            ValueError: the batch has other windows, or transitions.
        """
        is_window = all(has_leaf(batch, name) for name in ("valid", "timestep", "return_to_go"))
        if not is_window or batch.valid.shape[1:] != (self.cfg.context_length,):
            found = list(batch.valid.shape) if is_window else f"a batch with {', '.join(sorted(nested(batch)))}"
            raise ValueError(
                f"{type(self).__name__} learns from windows [N, {self.cfg.context_length}] of a dataset, got {found}: fetch "
                "them by offline_data_fetcher(cfg, dataset) with the same configuration."
            )
        return batch

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The negated log-likelihood of the actions, given the steps before and the return to go.

            loss = -mean_t(log pi(a_t | R_{t-K+1}, s_{t-K+1}, a_{t-K+1}, ..., R_t, s_t))

        The distribution is over the actions that the `action_mask` of s_t allows, if observations have one.

        Args:
            batch: obs [N, K, *obs_shape]; action [N, K, *action_shape]; return_to_go [N, K] float; timestep [N, K] int64; valid
                [N, K] bool.

        Returns:
            The scalar loss; and a dict to log, with loss, entropy and the result of `imitation_errors`.

        Reference:
            Chen et al. (2021), algorithm 1, with the likelihood of actions instead of the squared error, so that all action
            spaces have the same loss.
        """
        returns, valid = batch.return_to_go / self.cfg.return_scale, batch.valid.flatten()
        logit = self.model(batch.obs, batch.action, returns, batch.timestep, batch.valid)
        logit = masked(logit, batch.obs).flatten(0, 1)
        mode = self.model.distribution.mode(logit.detach())
        # Places without a step get an action of the space, so that its probability is a number.
        action = map_leaves(partial(_where, valid), map_leaves(merge_leading_dims, nested(batch.action)), mode)
        log_prob, entropy = self.model.distribution.evaluate(logit, action)
        loss = -masked_mean(log_prob, valid)
        errors = imitation_errors(mode, action, valid)
        return loss, {"loss": loss.detach(), "entropy": masked_mean(entropy.detach(), valid), **errors}


def _where(valid: Tensor, leaf: Tensor, other: Tensor) -> Tensor:
    """The rows of `leaf` that are valid, and those of `other` in place of the rest."""
    return torch.where(valid.view(-1, *[1] * (leaf.ndim - 1)), leaf, other.to(leaf.dtype))


def _with_last(steps: Tensor, last: Tensor) -> Tensor:
    """The steps [B, K, ...] with another last one."""
    return torch.cat([steps[:, :-1], last.unsqueeze(1).to(steps.dtype)], 1)
