"""Sections of configuration that several policies share: those of all policies, and those of on-policy algorithms."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from ding_lite.basics import Config, di_engine_settings, offline_settings, ranged_field, seed_field
from ding_lite.policy_base.rllib_names import RLlibNamed

_BURN_IN = "the number of burn-in steps is policy.learn.burn_in of R2D2Config."
_ACTOR_STEPS = "the actor learns in each gradient step; only TD3Config and TD3BCConfig have policy.learn.actor_update_freq."
_EPOCHS = "PPO and IMPALA have policy.learn.epoch_per_collect; other policies take one gradient step per batch."
_ROLLOUT = "the collector reads cfg.policy.collect.n_sample of the run, the transitions per iteration of all environments."
_ENVS = "the number of environments is cfg.env.collector_env_num of the run, or the second argument of make_envs."
_WORKERS = "the number of workers is cfg.env.workers of the run, or make_envs(..., workers=...)."
_EVAL_EPISODES = "the evaluator reads cfg.env.n_evaluator_episode of the run."
_BUFFER = "the size is cfg.policy.other.replay_buffer_size of the run, or the argument of ReplayBuffer."
_WIDTHS = "actor and critic each have the hidden layers of policy.model.encoder_hidden_size_list."
_OPTIMIZER = "the optimizer is policy.learn.optimizer, with optimizer_eps, rmsprop_decay and rmsprop_momentum."
_MODEL = "networks have policy.model.encoder_hidden_size_list and activation; a network of one's own is the argument model."
_EXPLORATION = "value-based policies explore by cfg.policy.other.eps, the others by their distribution over actions."
_OWN_MODEL = "a network of one's own is made by make_model of a subclass, or given to the policy as model=network."
_OF_RLLIBS_MODEL: Mapping[str, str] = {
    "fcnet_hiddens": "it is policy.model.encoder_hidden_size_list.",
    "fcnet_activation": "it is policy.model.activation.",
    "vf_share_layers": "PPO, A2C and IMPALA have policy.model.share_encoder; other algorithms have no shared encoder.",
    "conv_filters": "it is policy.model.conv_layers, with (channels, kernel size, stride) of each convolution.",
    "free_log_std": "leave it out: the standard deviation of PPO's actions is learned, and does not depend on the observation.",
    **dict.fromkeys(("use_lstm", "lstm_cell_size", "max_seq_len"), "PPO, IMPALA and R2D2 have policy.model.lstm_size."),
    "use_attention": "PPO and IMPALA have policy.model.attention_window.",
    **dict.fromkeys(("custom_model", "custom_model_config", "custom_action_dist", "post_fcnet_hiddens"), _OWN_MODEL),
}
"""Settings of RLlib's dict of the model."""
_NEXT_STEP = "the next gradient step"
_NEXT_BATCH = "the next batch"
_NEXT_ROLLOUT = "the next rollout"
_NEXT_ITERATION = "the next iteration"
_MADE_WITH = "the networks are made with it: make a new policy."
_NOT_A_SETTING = "it has no counterpart here, and no effect."
_OF_RUNS: Mapping[str, str] = {
    "env": "the environment is cfg.env.id of the run, or the first argument of make_envs.",
    "env_config": "keyword arguments of the environment are cfg.env.env_config of the run, or make_envs(env_config=...).",
    "horizon": "the time limit is cfg.env.max_episode_steps of the run, or make_envs(..., max_episode_steps=...).",
    "monitor": "videos are cfg.log.video_every of the run.",
    "log_level": "the level of run.log is cfg.log.level of the run.",
    "sample_batch_size": _ROLLOUT,
    "n_steps": _ROLLOUT,
    "ignore_worker_failures": "failed workers are restarted by cfg.env.restart of the run, or make_envs(..., restart=True).",
    "num_cpus_per_worker": _WORKERS,
    "observation_filter": "observations are normalised by policy.model.normalize_obs.",
    "clip_rewards": "a wrapper of the environment changes rewards, and reward_normalizer(cfg, policy.learn_mode) scales them.",
    "clip_range": "the clip range of PPO is policy.learn.clip_ratio.",
    "policy_kwargs": _MODEL,
    "hiddens": _MODEL,
    "noisy": "Rainbow has noisy networks: use RainbowPolicy.",
    "prioritized_replay": "replay is prioritised by PrioritizedReplayBuffer.",
    "replay_proportion": "IMPALA has policy.learn.replay_proportion.",
    "use_gae": "with policy.collect.gae_lambda = 1, gae_estimator gives Monte Carlo returns minus the value.",
    **dict.fromkeys(("opt_type", "decay", "epsilon", "momentum", "adam_epsilon"), _OPTIMIZER),
    **dict.fromkeys(("explore", "exploration_config"), _EXPLORATION),
    **dict.fromkeys(("min_iter_time_s", "min_time_s_per_iteration", "framework", "use_critic"), _NOT_A_SETTING),
    **dict.fromkeys(("shuffle_sequences", "preprocessor_pref", "normalize_actions"), _NOT_A_SETTING),
    **dict.fromkeys(("broadcast_interval", "learner_queue_size"), "the lag is cfg.max_lag of the run, in iterations."),
}
"""Settings of RLlib and Stable-Baselines3 that are not those of a policy here."""


def live_from_next_step(*names: str) -> dict[str, str]:
    """`live_settings` for settings that are read in each gradient step: a change counts from the next one."""
    return dict.fromkeys(names, _NEXT_STEP)


next_step = live_from_next_step  # its name in earlier versions


@dataclasses.dataclass
class EvaluatorConfig(Config):
    """When to evaluate."""

    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.EVALUATOR
    live_settings = dict.fromkeys(("eval_freq", "eval_freq_env_step"), _NEXT_ITERATION)

    eval_freq: int = ranged_field(500, low=1)
    """Gradient steps between two evaluations."""

    eval_freq_env_step: int | None = ranged_field(None, low=1)
    """Environment steps between two evaluations, if this comes first; None counts gradient steps only."""


@dataclasses.dataclass
class EvalConfig(Config):
    """Evaluation."""

    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.EVAL

    evaluator: EvaluatorConfig = dataclasses.field(default_factory=EvaluatorConfig)
    """When to evaluate."""


@dataclasses.dataclass
class ModelConfig(RLlibNamed):
    """The encoder of observations."""

    _section = "model."
    foreign: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("actor_head_hidden_size", "critic_head_hidden_size", "actor_head_layer_num", "critic_head_layer_num"), _WIDTHS
    )
    di_engine: ClassVar[Mapping[str, str]] = {**di_engine_settings.MODEL, **_OF_RLLIBS_MODEL}
    fixed_settings = dict.fromkeys(("*",), _MADE_WITH)

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [128, 128], low=1, high=16_384)
    """Width of each hidden layer."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """Activation after each hidden layer."""

    conv_layers: list[tuple[int, int, int]] | None = ranged_field(None, low=1, high=16_384)
    """For images: (channels, kernel size, stride) of each convolution; None chooses by image size."""

    normalize_obs: bool = False
    """Normalise observations to mean 0 and standard deviation 1, by running statistics of the batches learned from; with
    replay, these are the sampled batches. Images, integer Boxes and discrete parts are not normalised."""

    layer_norm: bool = False
    """Layer normalisation in each hidden layer, before the activation; not in convolutions and LSTMs."""


@dataclasses.dataclass
class LearnConfig(RLlibNamed):
    """Gradient steps."""

    _section = "learn."
    foreign: ClassVar[Mapping[str, str]] = {
        "burnin_step": _BURN_IN,
        "actor_update_freq": _ACTOR_STEPS,
        "policy_update_freq": _ACTOR_STEPS,
        **dict.fromkeys(("num_sgd_iter", "num_epochs", "n_epochs"), _EPOCHS),
        "max_grad_norm": "gradients are clipped to the norm policy.learn.grad_clip_norm.",
        **dict.fromkeys(("train_batch_size", "train_batch_size_per_learner"), _ROLLOUT),
        "value_norm": "values are not normalised; reward_normalizer(cfg, policy.learn_mode) scales rewards.",
        **offline_settings.DISTINCT,
    }
    di_engine: ClassVar[Mapping[str, str]] = {**di_engine_settings.LEARN, **offline_settings.SHORT}
    live_settings = dict.fromkeys(("batch_size",), _NEXT_BATCH) | live_from_next_step(
        "learning_rate", "lr_schedule", "optimizer_eps", "rmsprop_decay", "grad_clip_norm"
    )
    fixed_settings: ClassVar[Mapping[str, str]] = {
        "optimizer": "the moments of one optimizer do not fit another: start a new run.",
        "rmsprop_momentum": "the moments of RMSProp with and without momentum differ: start a new run.",
        "compile": "the policy is made with it: resume the saved run with the new value.",
        "on_nonfinite": "the copies of the weights that it needs are part of the policy's state: start a new run.",
    }

    batch_size: int = ranged_field(64, low=1, high=10_000_000)
    """Transitions per gradient step."""

    learning_rate: float = ranged_field(1e-3, low=0)
    """Learning rate of the optimizer."""

    lr_schedule: list[tuple[float, float]] | None = ranged_field(None, low=0)
    """Points (gradient step, learning rate), linearly interpolated; None for constant. Other learning rates, such as that
    of an actor, keep their ratio to learning_rate. A policy of build_policy needs the mixin LearningRateSchedule."""

    optimizer: Literal["adam", "rmsprop"] = "adam"
    """The optimizer."""

    optimizer_eps: float | None = ranged_field(None, low=0)
    """Epsilon of the optimizer, added to the denominator; None for 1e-8 with Adam and 1e-5 with RMSProp."""

    rmsprop_decay: float = ranged_field(0.99, low=0, high=1)
    """Decay of RMSProp's running mean of squared gradients, alpha in torch."""

    rmsprop_momentum: float = ranged_field(0.0, low=0)
    """Momentum of RMSProp."""

    grad_clip_norm: float | None = ranged_field(None, low=0, finite=False)
    """Clip the gradient to this norm; None for no clipping."""

    compile: Literal["off", "on", "auto"] = "off"
    """Compile the whole gradient step, ahead of time; see docs/compile.md. It takes 10 to 60 seconds, once for each network,
    shape of the batch and machine. With "on", the first step waits for it; with "auto", it runs in the background during the
    first 10,000 steps. On a GPU, the step is recorded as a CUDA graph, which takes no compiler and no time. A step that cannot
    be compiled causes a warning, and is taken without compilation."""

    on_nonfinite: Literal["raise", "skip", "restore"] = "raise"
    """If a loss or gradient is NaN or infinite: "raise" an error, "skip" the gradient step, or "restore" the weights and the
    optimizer of the last copy, at most 100 gradient steps ago. The last two wait for a GPU in each step."""


@dataclasses.dataclass
class CollectConfig(RLlibNamed):
    """Collection."""

    _section = "collect."
    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.COLLECT
    fixed_settings = dict.fromkeys(
        ("n_sample", "n_episode"), "collectors are made with it: start a new run, or change learn.batch_size."
    )

    n_sample: int = ranged_field(64, low=1, high=10_000_000)
    """Transitions per iteration, rounded up to whole steps of all environments; or, if the pipeline collects whole episodes by
    steps, to whole episodes."""

    n_episode: int = ranged_field(8, low=1, high=1_000_000)
    """Episodes per iteration, if the pipeline collects whole episodes."""


@dataclasses.dataclass
class LearnersConfig(Config):
    """Learners: processes that learn in place of the one of the script, on this machine or on a Ray cluster."""

    fixed_settings = dict.fromkeys(("*",), "learners are started with it: resume the saved run with the new value.")

    num_learners: int = ranged_field(0, low=0, high=1_000)
    """Number of learners; 0 to learn in the process of the script. Several learn from their part of each batch, and average
    their gradients."""

    backend: Literal["process", "ray"] = "process"
    """Where they are: "process" for processes of this machine, "ray" for actors of a Ray cluster (extra `ray`)."""

    restart: bool = False
    """Restart learners that die, hang or cannot be reached. The state after each batch is then kept, which takes time."""

    ray_address: str | None = None
    """For "ray", the cluster, such as "auto" or "host:6379"; None for the one that the program is connected to, or RAY_ADDRESS,
    or else a cluster of this machine."""

    num_cpus_per_learner: float | None = ranged_field(None, low=0)
    """For "ray", CPUs that a learner reserves. None reserves none: it starts where a CPU is free at that time."""

    num_gpus_per_learner: float = ranged_field(0.0, low=0)
    """For "ray", GPUs that a learner reserves."""

    learner_resources: dict[str, float] = dataclasses.field(default_factory=dict)
    """For "ray", amounts of other resources that a learner reserves, by the names of the cluster. On the command line
    NAME=AMOUNT ..."""

    timeout_s: float = ranged_field(600.0, low=0)
    """Maximum seconds to learn from one batch, and to wait for the other learners."""


@dataclasses.dataclass
class PolicyConfig(RLlibNamed):
    """The configuration of a policy."""

    foreign: ClassVar[Mapping[str, str]] = {
        "burnin_step": _BURN_IN,
        "rollout_fragment_length": _ROLLOUT,
        "batch_mode": "StepCollector collects a number of steps, EpisodeCollector a number of whole episodes, and "
        'EpisodeCollector(..., unit="steps") whole episodes with at least policy.collect.n_sample steps.',
        **dict.fromkeys(("num_workers", "num_rollout_workers", "num_env_runners"), _WORKERS),
        **dict.fromkeys(("num_envs_per_worker", "num_envs_per_env_runner"), _ENVS),
        "evaluation_interval": "the evaluator reads cfg.policy.eval.evaluator.eval_freq of the run, in gradient steps.",
        **dict.fromkeys(("evaluation_duration", "evaluation_num_episodes"), _EVAL_EPISODES),
        **dict.fromkeys(("buffer_size", "replay_buffer_config"), _BUFFER),
        "num_gpus": 'the device of the networks is policy.device, such as "cuda".',
        "num_learners": "learners in other processes are policy.learners.num_learners.",
        **_OF_RUNS,
        **offline_settings.DISTINCT,
    }
    di_engine: ClassVar[Mapping[str, str]] = {**di_engine_settings.POLICY, **offline_settings.SHORT}
    fixed_settings: ClassVar[Mapping[str, str]] = {
        "seed": "weights and random generators are made with it: start a new run.",
        "device": "networks, optimizer and random generators are on it: resume the saved run on the other device.",
    }

    seed: int | None = seed_field(None)
    """Random seed of the weights and of exploration; None takes the seed of the run."""

    device: str = "cpu"
    """Torch device of the networks: "cpu", "cuda" or "cuda:1"."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """Networks."""

    learn: LearnConfig = dataclasses.field(default_factory=LearnConfig)
    """Learning."""

    collect: CollectConfig = dataclasses.field(default_factory=CollectConfig)
    """Collection."""

    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    """Evaluation."""

    learners: LearnersConfig = dataclasses.field(default_factory=LearnersConfig)
    """Learning in other processes."""


# On-policy algorithms.


@dataclasses.dataclass
class ActorCriticModelConfig(ModelConfig):
    """Actor and critic."""

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64, 64], low=1, high=16_384)
    """Width of each hidden layer."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "tanh"
    """Activation after each hidden layer."""

    share_encoder: bool = False
    """Actor and critic share one encoder; useful for images."""


@dataclasses.dataclass
class OnPolicyLearnConfig(LearnConfig):
    """Learning from a rollout."""

    foreign: ClassVar[Mapping[str, str]] = {
        "ent_coef": "the weight of the entropy bonus is policy.learn.entropy_weight.",
        "vf_coef": "the weight of the critic's loss is policy.learn.value_weight.",
        "vf_clip_param": "PPO has policy.learn.value_clip, which limits the change of the value instead of its squared error.",
    }
    live_settings = live_from_next_step("entropy_weight", "entropy_schedule", "value_weight")

    entropy_weight: float = ranged_field(0.0, low=0)
    """Weight of the entropy bonus."""

    entropy_schedule: list[tuple[float, float]] | None = ranged_field(None, low=0)
    """Points (gradient step, weight of the entropy bonus), linearly interpolated; None for constant."""

    value_weight: float = ranged_field(0.5, low=0)
    """Weight of the critic's loss."""

    grad_clip_norm: float | None = ranged_field(0.5, low=0, finite=False)
    """Clip the gradient to this norm; None for no clipping."""


@dataclasses.dataclass
class ActorCriticLearnConfig(OnPolicyLearnConfig):
    """Learning an actor, and usually a critic, from a rollout."""

    live_settings = live_from_next_step("adv_norm")
    fixed_settings: ClassVar[Mapping[str, str]] = {
        "batch_size": "it has no effect, because each gradient step learns from a whole rollout: PPO has minibatches."
    }

    adv_norm: bool = True
    """Normalise the advantages of each gradient step to mean 0 and standard deviation 1."""


@dataclasses.dataclass
class MultiEpochLearnConfig(ActorCriticLearnConfig):
    """Learning from a rollout in several epochs."""

    live_settings = dict.fromkeys(("epoch_per_collect", "batch_size"), _NEXT_ROLLOUT)

    epoch_per_collect: int = ranged_field(10, low=1, high=1_000_000)
    """Epochs over each rollout."""

    batch_size: int = ranged_field(128, low=1, high=10_000_000)
    """Transitions per gradient step."""


@dataclasses.dataclass
class OnPolicyCollectConfig(CollectConfig):
    """Collection and advantage estimation."""

    live_settings = dict.fromkeys(("discount_factor", "gae_lambda"), _NEXT_ROLLOUT)

    n_sample: int = ranged_field(512, low=1, high=10_000_000)
    """Transitions per rollout, rounded up to whole steps of all environments."""

    discount_factor: float = ranged_field(0.99, low=0, high=1)
    """Discount factor gamma, per step."""

    gae_lambda: float = ranged_field(0.95, low=0, high=1)
    """lambda of generalized advantage estimation: 0 is the one-step TD error, 1 the Monte Carlo return minus the value."""


@dataclasses.dataclass
class OnPolicyConfig(PolicyConfig):
    """The configuration of an on-policy algorithm; the default of `build_policy`."""

    model: ActorCriticModelConfig = dataclasses.field(default_factory=ActorCriticModelConfig)
    """Actor and critic."""

    learn: OnPolicyLearnConfig = dataclasses.field(default_factory=OnPolicyLearnConfig)
    """Learning."""

    collect: OnPolicyCollectConfig = dataclasses.field(default_factory=OnPolicyCollectConfig)
    """Collection and advantage estimation."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=100)))
    """Evaluation."""


@dataclasses.dataclass
class PolicyGradientConfig(OnPolicyConfig):
    """The configuration of an on-policy algorithm that takes one gradient step per rollout."""

    learn: ActorCriticLearnConfig = dataclasses.field(default_factory=ActorCriticLearnConfig)
    """Learning."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=40)))
    """Evaluation."""


EpochsLearnConfig = MultiEpochLearnConfig  # its name in earlier versions
