"""Names of RLlib's settings, and the fields of a policy's configuration that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ding_lite.basics import Config
from ding_lite.basics.config_classes import section_types

PLACES = {
    "gamma": ("collect.discount_factor", "discount_factor"),
    "lambda": ("collect.gae_lambda",),
    "lr": ("learn.learning_rate",),
    "lr_schedule": ("learn.lr_schedule",),
    "entropy_coeff": ("learn.entropy_weight",),
    "entropy_coeff_schedule": ("learn.entropy_schedule",),
    "vf_loss_coeff": ("learn.value_weight",),
    "grad_clip": ("learn.grad_clip_norm",),
    "kl_coeff": ("learn.kl_coeff",),
    "kl_target": ("learn.kl_target",),
    "clip_param": ("learn.clip_ratio",),
}
"""RLlib's names, and the fields of the typed configuration that they stand for; the first field that exists is used."""

MORE_PLACES = {
    **dict.fromkeys(("num_sgd_iter", "num_epochs"), ("learn.epoch_per_collect",)),
    **dict.fromkeys(("sgd_minibatch_size", "minibatch_size"), ("learn.batch_size",)),
    "lambda_": PLACES["lambda"],
    "num_steps_sampled_before_learning_starts": ("learn.learning_starts",),
    "n_step": ("nstep",),
    "tau": ("learn.target_update_theta",),
    "double_q": ("double",),
    "dueling": ("model.dueling",),
    "num_atoms": ("model.n_atom",),
    "v_min": ("model.v_min",),
    "v_max": ("model.v_max",),
    "actor_lr": ("learn.learning_rate_actor",),
    "critic_lr": ("learn.learning_rate",),
    "alpha_lr": ("learn.learning_rate_alpha",),
    "initial_alpha": ("learn.alpha",),
    "policy_delay": ("learn.actor_update_freq",),
    "vtrace_clip_rho_threshold": ("learn.rho_clip",),
    "fcnet_hiddens": ("model.encoder_hidden_size_list",),
    "fcnet_activation": ("model.activation",),
    "vf_share_layers": ("model.share_encoder",),
}
"""More names of RLlib. `policy.config` has them, but does not list them."""

SCHEDULES = "lr_schedule", "entropy_coeff_schedule"
"""Names of schedules, whose points count something else here."""

SCHEDULE_UNIT = "the first numbers of the points of a schedule count gradient steps here, and environment steps in RLlib."


def places_for(name: str) -> tuple[str, ...]:
    """The dotted names for which a name stands: those of a name of RLlib, or itself."""
    return PLACES.get(name) or MORE_PLACES.get(name) or (name,)


class RLlibNamed(Config):
    """The configuration of a policy, or a section of it, whose errors say which of its fields a name of RLlib stands for."""

    _section = ""  # its name in the configuration of a policy, with a dot at the end

    @classmethod
    def about(cls, name: str, *tables: str) -> str | None:
        """Advice about a name of RLlib, or else of other libraries; None if the name is unknown; see `Config.about`."""
        known = (place for place in places_for(name) if place != name and place.startswith(cls._section))
        found = next((place for place in known if _has_field(cls, place.removeprefix(cls._section).split("."))), None)
        if found is None:
            return super().about(name, *tables)
        return f"it is policy.{found}{f'; {SCHEDULE_UNIT}' if name in SCHEDULES else '.'}"


def _has_field(cls: Any, path: Iterable[str]) -> bool:
    *sections, field = path
    for name in sections:
        inner = section_types(cls).get(name)
        if inner is None:
            return False
        cls = inner
    return field in cls.__dataclass_fields__
