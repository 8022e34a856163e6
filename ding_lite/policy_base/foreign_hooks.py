"""Hooks of RLlib's `build_policy_class` and `build_tf_policy` that `build_policy` does not have, and attributes of policies of
other libraries, with what to use instead."""

_FRAMEWORK = 'torch is the only framework, so leave it out, and pass hooks by name: `build_policy("MyPolicy", loss_fn=fn)`.'
_ACTING = "acting is a method: a subclass of `Policy` overrides `Policy.compute_actions`, and build_policy(..., base=MyPolicy)"
_DISTRIBUTION = (
    "the distribution follows from the action space, and make_model returns the network alone. For another distribution, the "
    "network has an attribute distribution, which `Policy.dist_class` and `Policy.drawn` use."
)
_OUTPUTS = "it is extra_action_out_fn, `build_policy(name, extra_action_out_fn=fn)`."
_PREVIOUS = "name prev_action_batch and prev_reward_batch in the signature of `Policy.compute_actions` to get them."
_LOGGED = "stats_fn, loss_fn as (loss, dict) and gradients_fn return what is logged: `build_policy(name, stats_fn=fn)`."
_GRADIENTS = "it is gradients_fn, (policy, optimizer, loss), `build_policy(name, gradients_fn=fn)`, which"

FOREIGN_HOOKS = {
    "framework": _FRAMEWORK,
    "extra_action_fetches_fn": _OUTPUTS,
    "extra_actions_fetches_fn": _OUTPUTS,
    "extra_learn_fetches_fn": _LOGGED,
    "grad_stats_fn": f"{_GRADIENTS} returns a dict to log.",
    "extra_grad_process_fn": f"{_GRADIENTS} changes the gradients in place and returns a dict to log.",
    "compute_gradients_fn": f"{_GRADIENTS} returns a list of (gradient, parameter), or changes the gradients in place.",
    "apply_gradients_fn": "the optimizer applies gradients: optimizer_fn makes it, `build_policy(name, optimizer_fn=fn)`, and "
    "gradients_fn changes gradients before. A subclass may override `Policy.before_step` and `Policy.after_step`.",
    "validate_spaces": "before_init may raise an error for spaces, `build_policy(name, before_init=fn)`; a subclass overrides "
    "`Policy.check_spaces`.",
    "_after_loss_init": "it is after_init, `build_policy(name, after_init=fn)`.",
    "action_sampler_fn": f"{_ACTING} adds hooks to it.",
    "make_action_sampler": f"{_ACTING} adds hooks to it.",
    "action_distribution_fn": f"{_ACTING} adds hooks to it; {_DISTRIBUTION}",
    "make_model_and_action_dist": f"it is make_model, `build_policy(name, make_model=fn)`: {_DISTRIBUTION}",
    "view_requirements_fn": f"leave it out: the dry run finds the columns that hooks read, `Policy.columns`; {_PREVIOUS}",
    "obs_include_prev_action_reward": _PREVIOUS,
    "get_batch_divisibility_req": "leave it out: a batch may have any number of rows, cfg.policy.learn.batch_size, and "
    '`Policy.learn_on_batch` splits it. Losses of whole sequences take rollouts: `Policy.loss_takes` is "rollouts".',
}
"""For each argument, what to use instead, as code in backticks."""

_PREDICTED = "`policy.predict(obs)` gives the action for one observation, or for a batch, and the next recurrent state."
_WEIGHTS = "`policy.state_dict()` is the whole state, and `policy.get_weights()` the weights."
_LOADED = "`policy.load_state_dict(state)` loads the whole state, and `policy.set_weights(weights)` the weights."

_SAVED = (
    "`CkptSaver(policy, cfg.exp_name, train_freq=100)` saves the policy with the run; `policy.state_dict()` is the whole state."
)
_LEARNED = (
    "`policy.learn_mode.forward(batch)` learns from a batch, and in a script the middleware "
    "`multistep_trainer(cfg, policy.learn_mode)` or OffPolicyLearner calls it."
)
_RUN = (
    "it learns from one batch. `task.run(max_step=500)` runs the middleware that a script has passed to `task.use(fn)`: "
    "examples/ppo.py is a whole script."
)

FOREIGN_ATTRIBUTES = {
    "save": _SAVED,
    "load": "`load_policy(cfg.exp_name)` loads the policy of a saved run.",
    "get_parameters": _WEIGHTS,
    "set_parameters": _LOADED,
    "update": _LEARNED,
    "set_eps": "it is an argument, `policy.collect_mode.forward(obs, eps=0.1)`; `eps_greedy_handler(cfg)` sets it in a run.",
    **dict.fromkeys(("_model", "_learn_model"), "the network that learns is `policy.model`."),
    **dict.fromkeys(
        ("_collect_model", "_eval_model"),
        "`policy.collect_mode` and `policy.eval_mode` act with copies; `policy.model` learns.",
    ),
    **dict.fromkeys(("compute_action", "compute_single_action"), _PREDICTED),
    **dict.fromkeys(("get_state", "get_exploration_state"), _WEIGHTS),
    "set_state": _LOADED,
    **dict.fromkeys(
        ("export_model", "import_model_from_h5"), '`export_policy(policy, "policy.onnx")` writes a file of the actions.'
    ),
    "export_checkpoint": "`CkptSaver(policy, cfg.exp_name, train_freq=100)` saves, and `load_policy(cfg.exp_name)` loads.",
    "from_checkpoint": "`load_policy(cfg.exp_name)` loads the policy of a saved run.",
    **dict.fromkeys(
        ("get_session", "get_placeholder"), "there are no sessions and placeholders: store tensors on the policy in loss_fn."
    ),
    "view_requirements": "`policy.columns` are the columns of a batch that the hooks read.",
}
"""The same for attributes."""

_ATTRIBUTE = "attributes are those of the policy, such as `policy.device` and `policy.cfg.learn.batch_size`."

MODE_ATTRIBUTES = {
    **dict.fromkeys(("get_attribute", "set_attribute"), _ATTRIBUTE),
    "reset": "leave it out: the recurrent state is an argument and a result of `policy.collect_mode.forward(obs, state)`, and "
    "None at the start of an episode.",
}
"""The same for attributes of the modes of a policy."""
