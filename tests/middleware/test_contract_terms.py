"""Every term of every contract of ours is needed: without any one field of it, a pipeline that uses it is refused by name.

The examples' own pipelines, and a few more for middleware that no example uses, run under enforcement as they are, plain,
with lag and on threads; then once more for each field of each contract, without that field.
"""

import dataclasses
import importlib.util
import warnings
from pathlib import Path

import gymnasium
import pytest

from ding_lite import PipelineError, Task, task
from ding_lite.config import A2CConfig, ConfigError, DQNConfig, PPOConfig, REINFORCEConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import ContractError, contract, contract_of
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    eps_greedy_masker,
    gae_estimator,
    inferencer,
    interaction_evaluator,
    montecarlo_return_estimator,
    multistep_trainer,
    nstep_reward_enhancer,
    offline_logger,
    offpolicy_data_fetcher,
    online_logger,
    onpolicy_data_fetcher,
    reward_estimator,
    reward_normalizer,
    rolloutor,
    termination_checker,
    trainer,
)
from ding_lite.policy import A2CPolicy, DQNPolicy, PPOPolicy, REINFORCEPolicy
from ding_lite.rewards import RNDRewardConfig, RNDRewardModel

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
TERMS = ("reads", "writes", "may_read", "may_write", "reads_after", "writes_after", "writes_late")
ITERATIONS = 4
SMALL = {
    "env.collector_env_num": 2,
    "env.evaluator_env_num": 1,
    "env.n_evaluator_episode": 1,
    "env.stop_value": None,
    "policy.eval.evaluator.eval_freq": 2,
    "policy.collect.n_sample": 32,
    "policy.collect.n_episode": 2,
    "policy.learn.batch_size": 4,
    "policy.learn.update_per_collect": 1,
    "policy.learn.learning_starts": 4,
    "policy.learn.epoch_per_collect": 1,
    "policy.random_collect_size": 16,
    "policy.model.encoder_hidden_size_list": [8],
    "policy.model.actor_hidden_size_list": [8],
    "policy.model.critic_hidden_size_list": [8],
}

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]


def shrink(cfg, folder, **settings):
    for key, value in {**SMALL, "exp_name": str(folder), "seed": 3, "max_step": ITERATIONS, **settings}.items():
        try:
            cfg.override({key: value})
        except ConfigError as error:
            if "has no" not in str(error):
                raise
    cfg.log.every_s = cfg.log.show_every_s = 1e9
    return cfg


def example(name):
    def run(folder, **mode):
        spec = importlib.util.spec_from_file_location(f"terms_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if name == "custom_context":
            module.main(max_step=ITERATIONS) if "max_step" in module.main.__code__.co_varnames else module.main()
            return
        cfg = getattr(module, "CONFIG", None) or module.main.__annotations__["cfg"]()
        settings = {"async_mode": mode.get("async_mode", False)}
        if "max_lag" in mode:
            settings["max_lag"] = mode["max_lag"]
        module.main(shrink(cfg, folder, **settings))

    return run


class Parts:
    """What a pipeline of CartPole is made of."""

    def __init__(self, folder, make_config, make_policy, workers=1, **settings):
        self.cfg = shrink(make_config(), folder, **settings)
        self.env = make_envs("CartPole-v1", 2, seed=0, workers=workers, backend="process" if workers > 1 else "local")
        self.eval_env = make_envs("CartPole-v1", 1, seed=1)
        self.policy = make_policy(self.cfg.policy, self.env.single_observation_space, self.env.single_action_space)
        self.buffer = ReplayBuffer(500, seed=0)

    def run(self, *middleware, ctx=None, **mode):
        with task.start(ctx=OnlineRLContext() if ctx is None else ctx, **mode):
            for one in middleware:
                task.use(one)
            task.run(ITERATIONS)


def from_one_step_at_a_time(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    it.run(
        eps_greedy_masker(),
        inferencer(0, it.policy.collect_mode, it.env),
        rolloutor(it.policy.collect_mode, it.env),
        data_pusher(it.cfg, it.buffer),
        offpolicy_data_fetcher(it.cfg, it.buffer, it.policy.learn_mode),
        trainer(it.cfg, it.policy.learn_mode),
        termination_checker(max_env_step=10**6, max_train_iter=10**6),
        **mode,
    )


def from_whole_episodes(folder, workers=1, **mode):
    it = Parts(folder, REINFORCEConfig, REINFORCEPolicy, workers)
    it.run(
        interaction_evaluator(it.cfg, it.policy.eval_mode, it.eval_env),
        EpisodeCollector(it.cfg, it.policy.collect_mode, it.env),
        montecarlo_return_estimator(it.cfg, it.policy.collect_mode),
        multistep_trainer(it.cfg, it.policy.learn_mode),
        CkptSaver(it.policy, it.cfg.exp_name, train_freq=1),
        online_logger(it.cfg),
        **mode,
    )


def from_episodes_into_a_buffer(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 2})
    it.cfg.policy.collect.override({"n_episode": 2}) if hasattr(it.cfg.policy.collect, "n_episode") else None
    it.run(
        eps_greedy_handler(it.cfg),
        EpisodeCollector(it.cfg, it.policy.collect_mode, it.env),
        nstep_reward_enhancer(it.cfg),
        data_pusher(it.cfg, it.buffer),
        OffPolicyLearner(it.cfg, it.policy.learn_mode, it.buffer),
        **mode,
    )


def from_workers(folder, **mode):
    it = Parts(folder, PPOConfig, PPOPolicy, 2)
    it.run(
        StepCollector(it.cfg, it.policy.collect_mode, it.env),
        reward_normalizer(it.cfg, it.policy.learn_mode),
        gae_estimator(it.cfg, it.policy.collect_mode),
        multistep_trainer(it.cfg, it.policy.learn_mode),
        **mode,
    )


def from_episodes_of_workers(folder, **mode):
    from_whole_episodes(folder, workers=2, **mode)


def from_estimated_rewards(folder, **mode):
    it = Parts(folder, A2CConfig, A2CPolicy)
    model = RNDRewardModel(RNDRewardConfig(), it.env.single_observation_space, seed=0)
    it.run(
        StepCollector(it.cfg, it.policy.collect_mode, it.env),
        reward_estimator(it.cfg, model, of="trajectories"),
        gae_estimator(it.cfg, it.policy.collect_mode),
        onpolicy_data_fetcher(it.cfg),
        trainer(it.cfg, it.policy.learn_mode),
        **mode,
    )


def from_estimated_rewards_of_a_batch(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    model = RNDRewardModel(RNDRewardConfig(), it.env.single_observation_space, seed=0)
    it.run(
        eps_greedy_handler(it.cfg),
        StepCollector(it.cfg, it.policy.collect_mode, it.env),
        data_pusher(it.cfg, it.buffer),
        offpolicy_data_fetcher(it.cfg, it.buffer, it.policy.learn_mode, model),
        reward_estimator(it.cfg, model),
        trainer(it.cfg, it.policy.learn_mode),
        **mode,
    )


def from_a_dataset(folder, **mode):
    it = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    collected = Parts(folder, DQNConfig, DQNPolicy, **{"policy.nstep": 1})
    collected.run(
        StepCollector(collected.cfg, collected.policy.collect_mode, collected.env, collect_kwargs={"eps": 1.0}),
        data_pusher(collected.cfg, collected.buffer),
    )
    buffer = collected.buffer

    @contract(writes=("train_data",), draws=(buffer,), stage="learn")
    def fetch(ctx):
        ctx.train_data = buffer.sample(4)

    it.run(
        interaction_evaluator(it.cfg, it.policy.eval_mode, it.eval_env),
        fetch,
        trainer(it.cfg, it.policy.learn_mode),
        CkptSaver(it.policy, it.cfg.exp_name, train_freq=1),
        offline_logger(it.cfg),
        ctx=OfflineRLContext(),
        **mode,
    )


NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "custom_context")
PIPELINES = {
    **{name: example(name) for name in NAMES},
    **{
        run.__name__: run
        for run in (
            from_one_step_at_a_time,
            from_whole_episodes,
            from_episodes_into_a_buffer,
            from_workers,
            from_episodes_of_workers,
            from_estimated_rewards,
            from_estimated_rewards_of_a_batch,
            from_a_dataset,
        )
    },
}


def contracts_of(name, folder, patch):
    """(position, name, contract) of each middleware of a pipeline."""
    found, use = [], Task.use

    def remember(self, fn, *args, **kwargs):
        found.append((len(found), getattr(fn, "__name__", type(fn).__name__), fn))
        return use(self, fn, *args, **kwargs)

    with patch.context() as here:
        here.setattr(Task, "use", remember)
        PIPELINES[name](folder, max_lag=1)
    return [(number, str(label), contract_of(fn)) for number, label, fn in found if contract_of(fn) is not None]


def without(name, folder, patch, position, term, field):
    """Run a pipeline in which the contract of one middleware lacks one field."""
    seen, use = [], Task.use

    def strip(self, fn, *args, **kwargs):
        if len(seen) == position:
            terms = contract_of(fn)
            fields = tuple(one for one in getattr(terms, term) if one != field)
            lacking = {"needs": (), "provides": ()} if field == "collect_kwargs" else {}
            changed = dataclasses.replace(terms, **{term: fields, **lacking})
            fn.__contract__ = changed
        seen.append(fn)
        return use(self, fn, *args, **kwargs)

    with patch.context() as here:
        here.setattr(Task, "use", strip)
        PIPELINES[name](folder, max_lag=1)


if __name__ == "__main__":
    import sys, tempfile

    patch = pytest.MonkeyPatch()
    warnings.simplefilter("ignore")
    done, missed = {}, []
    for name in sys.argv[1:] or PIPELINES:
        folder = Path(tempfile.mkdtemp())
        try:
            found = contracts_of(name, folder / "a", patch)
        except BaseException as error:
            print("BROKEN", name, type(error).__name__, str(error)[:300], flush=True)
            if task.running:
                task.stop()
            continue
        for position, label, terms in found:
            for term in TERMS:
                for field in getattr(terms, term):
                    key = (label, term, field)
                    if done.get(key):
                        continue
                    try:
                        without(name, folder / "b", patch, position, term, field)
                    except (ContractError, PipelineError) as error:
                        ok = f"ctx.{field}" in str(error)
                        done[key] = ok
                        if not ok:
                            print("OTHER", name, key, str(error)[:200], flush=True)
                    except BaseException as error:
                        print("ODD", name, key, type(error).__name__, str(error)[:200], flush=True)
                        done[key] = False
                        if task.running:
                            task.stop()
                    else:
                        done.setdefault(key, False)
        print(name, len(found), sum(done.values()), len(done), flush=True)
    print("missed:", [key for key, ok in done.items() if not ok])
