"""DI-engine's settings that are called otherwise here or are not needed, by section of a configuration."""

_SPACES = "leave it out: DQNPolicy(cfg.policy, observation_space, action_space) takes the spaces of the environments."
_CLASS = "leave it out: the class of the policy says it."
_PRIORITY = (
    "leave it out: with PrioritizedReplayBuffer in place of ReplayBuffer, the policy weighs its batches and gives priorities."
)
_UNROLL = "leave it out: a batch is a whole rollout; R2D2Config and PPOLSTMConfig have policy.learn.unroll_len."
_SEQUENCE = "the number of steps of a sequence that are learned from is policy.learn.unroll_len of R2D2Config."
_ENDLESS = "leave it out: policy.collect.n_sample is a number of transitions, and a rollout may hold several episodes."
_ONE_DEVICE = (
    "a policy learns on one device, policy.device; several processes of torchrun learn together in a block "
    "with data_parallel(cfg)."
)
_GAMMA = "the discount factor is policy.discount_factor, and for on-policy algorithms policy.collect.discount_factor."
_CRITIC_RATE = "the learning rate of the critics is policy.learn.learning_rate."
_ACTOR_RATE = "the learning rate of the actor is policy.learn.learning_rate_actor of SACConfig, TD3Config and DDPGConfig."
_CLIP = "gradients are clipped to the norm policy.learn.grad_clip_norm."
_SHOWN = "policy.eval, log.every_s and log.show_every_s say when to evaluate, log and show progress."
_SAVED = "load_policy(cfg.exp_name) loads a saved policy, and resume of the configuration continues a run."
_OPTIMIZER = "a subclass of the policy makes its optimizer in make_optimizer."
_LAYERS = "a subclass of the policy makes another network in make_model."
_STD = "the standard deviation of PPO's actions is learned, and does not depend on the observation."
_TARGET_NOISE = "TD3Config has policy.learn.target_noise and policy.learn.target_noise_clip; DDPG has no such noise."
_ADVANTAGES = "leave it out: gae_estimator computes the advantages of a rollout once."
_WRAPPER = "pass a wrapper of gymnasium, make_envs(env_id, num_envs, wrappers=[...])."
_COLLECTOR_ENVS = "the number of environments is env.collector_env_num."
_EVALUATOR_ENVS = "the number of environments is env.evaluator_env_num."
_REPLAY = (
    "the size is policy.other.replay_buffer_size; R2D2Config and RainbowConfig have policy.other.priority_alpha and "
    "policy.other.priority_beta. There is no limit of uses."
)
_VIDEOS = "videos of evaluations are recorded with log.video_every, into the run's folder."
_NORMALIZED = "observations are normalised by policy.model.normalize_obs, by running statistics of the batches learned from."
_BATCHES = "leave it out: offline_data_fetcher(cfg, dataset) makes batches of tensors."
_NO_DECAY = "there is no weight decay; a subclass of the policy makes its optimizer in make_optimizer."
_DATASET = "the dataset is the setting dataset of the run, for open_dataset(cfg.dataset), which knows its format."
_WINDOW = "it is policy.context_length of DecisionTransformerConfig."

RUN = {
    "create_cfg": "leave it out: a script names its classes.",
    "create_config": "leave it out: a script names its classes.",
    "reward_model": "RNDConfig has it; other reward models are objects for OffPolicyLearner or reward_estimator.",
}
ENV = {
    "act_scale": "leave it out: policies for Box actions scale or clip them to the bounds of the space.",
    "continuous": "it is an argument of the environment: make_envs(env_id, num_envs, continuous=True).",
    "env_id": "it is env.id.",
    "frame_stack": f"{_WRAPPER[:-1]}, such as FrameStackObservation.",
    "manager": "leave it out: env.backend and env.workers say where environments are stepped.",
    "norm_obs": "observations are normalised by policy.model.normalize_obs.",
    "norm_reward": "the middleware reward_normalizer(cfg, policy.learn_mode) scales rewards.",
    "replay_path": _VIDEOS,
    "rew_clip": f"{_WRAPPER[:-1]}, such as ClipReward.",
    "use_act_scale": "leave it out: policies for Box actions scale or clip them to the bounds of the space.",
}
POLICY = {
    "action_space": _SPACES,
    "bp_update_sync": _ONE_DEVICE,
    "cuda": 'the device of the networks is policy.device, "cpu" or "cuda".',
    "discount_factor": _GAMMA,
    "learn_unroll_len": _SEQUENCE,
    "load_path": _SAVED,
    "multi_agent": "several policies learn in one run with MultiAgentCollector and for_policy.",
    "multi_gpu": _ONE_DEVICE,
    "noisy_net": "RainbowConfig has noisy networks.",
    "nstep": "DQN, Rainbow and their kind have policy.nstep; on-policy algorithms estimate returns over the whole rollout.",
    "nstep_return": "returns of several steps are those of gae_estimator, with policy.collect.gae_lambda.",
    "on_policy": _CLASS,
    "other": "leave it out: an on-policy algorithm has neither replay nor an epsilon.",
    "priority": _PRIORITY,
    "priority_IS_weight": _PRIORITY,
    "random_collect_size": "it is an argument of StepCollector; SACConfig has policy.random_collect_size.",
    "recompute_adv": _ADVANTAGES,
    "traj_len_inf": _ENDLESS,
    "transition_with_policy_data": "leave it out: a rollout has the outputs of the policy that its loss reads.",
    "type": _CLASS,
    "unroll_len": _UNROLL,
    **dict.fromkeys(("state_mean", "state_std"), _NORMALIZED),
    "clip_grad_norm_p": _CLIP,
    "collate_fn": _BATCHES,
    "context_len": _WINDOW,
    "dataset_name": _DATASET,
    "env_name": "it is env.id.",
    "evaluator_env_num": _EVALUATOR_ENVS,
    "max_eval_ep_len": "it is env.max_episode_steps.",
    "num_eval_ep": "it is env.n_evaluator_episode.",
    "num_updates_per_iter": "leave it out: each iteration takes one gradient step, and max_step is their number.",
    "rtg_scale": "it is policy.return_scale of DecisionTransformerConfig.",
    "rtg_target": "it is policy.target_return of DecisionTransformerConfig.",
    "stop_value": "it is env.stop_value.",
    "warmup_steps": "a learning rate that changes is policy.learn.lr_schedule.",
    "wt_decay": _NO_DECAY,
}
MODEL = {
    **dict.fromkeys(("action_shape", "action_space", "obs_shape"), _SPACES),
    **dict.fromkeys(("bound_type", "fixed_sigma_value", "sigma_type"), _STD),
    **dict.fromkeys(("dropout", "norm_type", "res_link"), _LAYERS),
    **dict.fromkeys(("head_hidden_size", "head_layer_num"), "hidden layers are policy.model.encoder_hidden_size_list."),
    "dueling": "DQNConfig, R2D2Config and RainbowConfig have policy.model.dueling.",
    "lstm_type": "the recurrent networks have an LSTM, of width policy.model.lstm_size in R2D2Config and PPOLSTMConfig.",
    "twin_critic": "leave it out: SAC and TD3 have two critics, DDPG has one.",
}
TRANSFORMER = {
    **dict.fromkeys(("act_dim", "state_dim"), _SPACES),
    "context_len": _WINDOW,
    "continuous": "leave it out: the action space says it.",
    "drop_p": "there is no dropout.",
    "h_dim": "it is policy.model.size of DecisionTransformerConfig.",
    "max_timestep": "it is policy.model.longest of DecisionTransformerConfig.",
    "n_blocks": "it is policy.model.layers of DecisionTransformerConfig.",
    "n_heads": "it is policy.model.heads of DecisionTransformerConfig.",
}
LEARN = {
    **dict.fromkeys(("betas", "optim", "weight_decay"), _OPTIMIZER),
    **dict.fromkeys(("clip_value", "grad_clip_type", "grad_clip_value", "grad_norm", "ignore_grad_clip"), _CLIP),
    **dict.fromkeys(("learning_rate_critic", "learning_rate_q", "learning_rate_value"), _CRITIC_RATE),
    **dict.fromkeys(("learning_rate_actor", "learning_rate_policy"), _ACTOR_RATE),
    **dict.fromkeys(("noise", "noise_range", "noise_sigma"), _TARGET_NOISE),
    **dict.fromkeys(("cos_lr_scheduler", "lr_scheduler"), "a learning rate that changes is policy.learn.lr_schedule."),
    "adv_norm": "PPO, A2C and IMPALA have policy.learn.adv_norm.",
    "burnin_step": "the number of burn-in steps is policy.learn.burn_in of R2D2Config.",
    "c_clip_ratio": "it is policy.learn.c_clip of IMPALAConfig.",
    "cuda": 'the device of the networks is policy.device, "cpu" or "cuda".',
    "discount_factor": _GAMMA,
    "epoch_per_collect": "PPO and IMPALA have policy.learn.epoch_per_collect.",
    "ignore_done": "leave it out: the value after an episode is 0 if it terminated, and bootstrapped if it was truncated.",
    "kappa": "it is policy.kappa of QRDQNConfig and IQNConfig. Leave it out for other algorithms, which have no quantile loss.",
    "lambda_": "it is policy.collect.gae_lambda.",
    "learner": _SHOWN,
    "multi_gpu": _ONE_DEVICE,
    "normalize_advantage": "it is policy.learn.adv_norm.",
    "ppo_param_init": "leave it out: the networks of actor-critic policies have an orthogonal initialisation.",
    "recompute_adv": _ADVANTAGES,
    "resume_training": _SAVED,
    **dict.fromkeys(("rho_clip_ratio", "rho_pg_clip_ratio"), "it is policy.learn.rho_clip of IMPALAConfig."),
    "target_theta": "it is policy.learn.target_update_theta.",
    "unroll_len": _UNROLL,
    "update_per_collect": "a rollout is learned from in policy.learn.epoch_per_collect epochs of PPOConfig.",
    "normalize_states": _NORMALIZED,
    "train_epoch": "max_step of the run is the number of gradient steps; ctx.train_epoch counts the passes over the dataset.",
}
COLLECT = {
    "collector": _SHOWN,
    "discount_factor": _GAMMA,
    "each_iter_n_sample": "it is policy.collect.n_sample.",
    "env_num": _COLLECTOR_ENVS,
    "gae_lambda": "on-policy algorithms have policy.collect.gae_lambda.",
    "noise_sigma": "DDPGConfig and TD3Config have policy.collect.noise_sigma.",
    "traj_len_inf": _ENDLESS,
    "unroll_len": _UNROLL,
    **dict.fromkeys(("data_path", "data_type"), _DATASET),
    "normalize_states": _NORMALIZED,
}
EVAL = {"env_num": _EVALUATOR_ENVS, "render": _VIDEOS}
EVALUATOR = {
    "n_episode": "the number of episodes is env.n_evaluator_episode.",
    "render": _VIDEOS,
    "stop_value": "it is env.stop_value.",
}
REPLAY = {
    "commander": "policy.eval and policy.learn say when to evaluate and to learn.",
    "her": "HERConfig has the section her, with her.strategy and her.ratio.",
    "eps": "DQN, C51, QR-DQN, IQN and R2D2 have policy.other.eps; other algorithms explore by their own noise.",
    "replay_buffer": _REPLAY,
}
HINDSIGHT = {
    "episode_size": "leave it out: a batch has policy.learn.batch_size transitions, each of a random episode.",
    **dict.fromkeys(
        ("her_replay_k", "n_sampled_goal"), "it is her.ratio, the share of transitions with a new goal: k / (k + 1)."
    ),
    **dict.fromkeys(("goal_selection_strategy", "her_strategy"), "it is her.strategy."),
    "sample_per_episode": "leave it out: a batch has policy.learn.batch_size transitions, each of a random episode.",
}
