"""Methods of policies, models and callbacks of RLlib and DI-engine that are no hooks here, with what to write instead."""

from types import MappingProxyType

HOOKS = MappingProxyType(
    {
        "postprocess_trajectory": "postprocess",
        **dict.fromkeys(("compute_loss", "compute_losses", "compute_loss_for_module", "custom_loss"), "loss"),
        **dict.fromkeys(("forward_train", "_forward_train", "_forward_learn"), "loss"),
        **dict.fromkeys(("extra_grad_process", "apply_gradients", "postprocess_gradients"), "gradients"),
        **dict.fromkeys(("action_sampler", "compute_actions_from_input_dict"), "compute_actions"),
        **dict.fromkeys(("forward_inference", "_forward_inference"), "compute_actions"),
        **dict.fromkeys(("forward_exploration", "_forward_exploration"), "compute_actions"),
        **dict.fromkeys(("_forward_collect", "_forward_eval"), "compute_actions"),
        **dict.fromkeys(("extra_action_feed", "_process_transition"), "extra_action_out"),
        **dict.fromkeys(("optimizer_fn", "configure_optimizers_for_module"), "make_optimizer"),
        **dict.fromkeys(("_init_learn", "_init_collect", "_init_eval"), "before_loss_init"),
        **dict.fromkeys(("_get_train_sample", "_data_preprocess_learn"), "postprocess"),
        **dict.fromkeys(("_monitor_vars_learn", "_monitor_vars_collect", "_monitor_vars_eval"), "stats"),
        **dict.fromkeys(("default_model", "_create_model"), "make_model"),
        **dict.fromkeys(("compute_values", "value_function"), "with_values"),
        "after_gradient_based_update": "after_step",
        **dict.fromkeys(("_state_dict_learn", "_state_dict_collect", "_state_dict_eval"), "state_dict"),
        **dict.fromkeys(("_load_state_dict_learn", "_load_state_dict_collect", "_load_state_dict_eval"), "load_state_dict"),
    }
)
"""Most without the suffix `_fn`, each with the hook that has its code here."""

_CALLBACK = (
    "a policy has no callbacks. A middleware of your own, `task.use(fn)`, reads and writes the context in every iteration: "
    "ctx.finished_episodes has the return and length of each episode, and ctx.eval_value the result of an evaluation."
)
_STATE = "what outlives a step is an element of the recurrent state, `Policy.get_initial_state`."

ADVICE = MappingProxyType(
    {
        **dict.fromkeys(("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end"), _CALLBACK),
        **dict.fromkeys(("on_evaluate_start", "on_evaluate_end", "on_sample_end", "on_train_result"), _CALLBACK),
        **dict.fromkeys(("on_algorithm_init", "on_learn_on_batch", "on_postprocess_trajectory"), _CALLBACK),
        "training_step": "the middleware that a script passes to `task.use(fn)` are a step of training; a policy learns in "
        "`Policy.loss` or `Policy.learn_on_batch`.",
        **dict.fromkeys(("_reset_learn", "_reset_collect", "_reset_eval"), _STATE),
        "metrics": "`Policy.metrics` is the logger of the hooks; a dict to log is the result of `Policy.stats`.",
    }
)
"""For the others, a sentence, with code in backticks."""
