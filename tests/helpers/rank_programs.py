"""Programs of two processes that learn together. `start` starts both."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import rank_policies
import torch
from gymnasium import spaces

from ding_lite.basics import RunFiles
from ding_lite.config import A2CConfig, BCConfig, DecisionTransformerConfig, DQNConfig, PPOConfig, data_parallel
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer, nested, tree
from ding_lite.data.trees import map_leaves
from ding_lite.datasets import open_dataset
from ding_lite.engine import Task, contract
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    ddp_termination_checker,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    offline_data_fetcher,
    offpolicy_data_fetcher,
    online_logger,
    reward_normalizer,
    trainer,
)
from ding_lite.middleware.rewards import require_reward_model
from ding_lite.nn import RunningNorm
from ding_lite.policy import A2CPolicy, BCPolicy, DecisionTransformerPolicy, DQNPolicy, PPOPolicy
from ding_lite.ranks import RankError, current_ranks, joined

OBSERVATIONS, ACTIONS = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
ROWS = (5, 9)
"""Rows of a minibatch of each rank."""
STEPS = 6
BLOCKS = 60
"""More than these programs join the other process."""
TIMEOUT_S = 20.0
_ports = []


def next_port():
    """A process that joins the other one again needs another port, because that of the last time may still be in use."""
    os.environ["MASTER_PORT"] = _ports.pop(0)


def together(cfg):
    """`data_parallel`, with another port each time."""
    next_port()
    return data_parallel(cfg, timeout_s=TIMEOUT_S)


# Gradient steps on given rows: compared with one process that has all of them.


def rows_of_step(step):
    """The minibatch of one process with all rows."""
    g = torch.Generator().manual_seed(step)
    count = sum(ROWS)
    x = torch.randn(6, count, generator=g, dtype=torch.float64)
    return {
        "obs": torch.randn(count, 3, generator=g, dtype=torch.float64),
        "action": torch.randint(0, 2, (count,), generator=g),
        "log_prob": -x[0].abs(),
        "advantage": 3 * x[1] + 1,
        "value": x[2],
        "return_": 2 * x[3],
    }


def learner(kind, **settings):
    cls, cfg = {"a2c": (A2CPolicy, A2CConfig()), "ppo": (PPOPolicy, PPOConfig())}[kind]
    cfg.override({"policy.learn.grad_clip_norm": 0.1, "policy.learn.adv_norm": True, **settings})
    cfg.override({"policy.model.encoder_hidden_size_list": [8]})
    policy = cls(cfg.policy, OBSERVATIONS, ACTIONS)
    policy.model.double()
    return policy


def steps(kind, rank=None):
    """The weights, and the statistics of the last step, after some gradient steps; of one process if `rank` is None."""
    policy, stats = learner(kind), {}
    for step in range(STEPS):
        rows = rows_of_step(step)
        if rank is not None:
            mine = slice(0, ROWS[0]) if rank == 0 else slice(ROWS[0], None)
            rows = {name: column[mine] for name, column in rows.items()}
        stats = policy.gradient_step(tree(rows))
    return [it.detach().clone() for it in policy.params], {name: float(value) for name, value in stats.items()}


def gradient_steps(rank, folder):
    next_port()
    with joined(TIMEOUT_S):
        found = {kind: steps(kind, rank) for kind in ("a2c", "ppo")}
        policy = learner("ppo", **{"policy.learn.on_nonfinite": "skip"})
        before = [it.detach().clone() for it in policy.params]
        rows = rows_of_step(0)
        if rank == 1:
            rows["advantage"][0] = torch.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found["skipped_fraction"] = policy.gradient_step(tree(rows))["skipped_fraction"]
        found["unchanged"] = all(map(torch.equal, before, policy.params))
        pair = [learner("ppo", **{"policy.learn.compile": mode}) for mode in ("on", "off")]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for one in pair:
                one.gradient_step(tree(rows_of_step(0)))
        found["compile"] = [str(warning.message) for warning in caught if "learn.compile" in str(warning.message)]
        found["as without"] = all(map(torch.equal, *(one.params for one in pair)))
        return found


def all_policies(rank, folder):
    """The networks of every policy after some gradient steps."""
    next_port()
    with joined(TIMEOUT_S):
        return {case: rank_policies.learned(case, rank) for case in rank_policies.CASES}


def running_statistics(rank, folder):
    norm = RunningNorm((2,))
    next_port()
    with joined(TIMEOUT_S):
        for rows in statistics_rows():
            norm.update(rows[: ROWS[0]] if rank == 0 else rows[ROWS[0] :])
        norm.update(torch.full((rank, 2), 7.0))  # one of the processes has nothing to add
    return norm.state_dict()


def statistics_rows():
    return [torch.from_numpy(np.random.default_rng(i).normal(i, 1 + i, (sum(ROWS), 2))) for i in range(3)]


# Whole runs.


def config(folder, **settings):
    return PPOConfig().override(
        {
            "exp_name": str(folder),
            "env.collector_env_num": 2,
            "env.evaluator_env_num": 1,
            "env.n_evaluator_episode": 1,
            "env.max_episode_steps": 12,
            "env.stop_value": None,
            "policy.eval.evaluator.eval_freq": 4,
            "policy.collect.n_sample": 16,
            "policy.learn.batch_size": 8,
            "policy.learn.epoch_per_collect": 1,
            "policy.model.encoder_hidden_size_list": [8],
            "policy.model.normalize_obs": True,
            **settings,
        }
    )


def run(cfg, *middleware, late=(), max_step=6, limits=None, checker=True, change=None, kind=PPOPolicy, **start):
    """A run with these further middleware. Returns what it came to."""
    env = make_envs(cfg.env.id, cfg.env.collector_env_num, seed=cfg.seed, **cfg.env.options())
    evaluated = make_envs(cfg.env.id, cfg.env.evaluator_env_num, seed=cfg.seed + 1, **cfg.env.options())
    policy = kind(cfg.policy, env.single_observation_space, env.single_action_space)
    if change is not None:
        change(policy)
    task, left = Task(), None
    with task.start(ctx=OnlineRLContext(), resume=cfg.resume, **start):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluated))
        task.use(StepCollector(cfg, policy.collect_mode, env))
        task.use(reward_normalizer(cfg, policy.learn_mode))
        task.use(gae_estimator(cfg, policy.collect_mode))
        for one in middleware:
            task.use(one)
        task.use(multistep_trainer(cfg, policy.learn_mode))
        for one in late:
            task.use(one)
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=4))
        task.use(online_logger(cfg, train_show_freq=4))
        if checker:
            task.use(ddp_termination_checker(**(limits or {})))
        try:
            task.run(max_step)
        except SystemExit as error:
            if error.code != 143:  # SIGTERM
                raise
            left = error.code
        ctx = task.ctx
        return {
            "iterations": ctx.total_step + 1,
            "env_step": ctx.env_step,
            "train_iter": ctx.train_iter,
            "evaluation": (ctx.last_eval_value, ctx.last_eval_iter),
            "reason": str(task.end_reason),
            "exit": left,
            "policy": policy.state_dict(),
            "env": env.state_dict(),
        }


def at(iteration, rank, act):
    """A middleware that calls `act` in this iteration of this rank, or of all ranks if it is None."""

    @contract(stage="process")
    def do(ctx):
        ranks = current_ranks()
        if ctx.total_step == iteration and (rank is None or ranks.rank == rank):
            act()

    return do


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def finished():
    from ding_lite.engine import current_task

    current_task().finish = True


def whole_runs(rank, folder):
    """Runs that end in different ways."""
    found = {}
    cases = {
        "max_step": {},
        "limit": {"limits": {"max_env_step": 3 * 32}},
        "finish": {"extra": [at(2, 1, finished)]},
        "signal": {"extra": [at(2, 1, terminated)]},
        "rows": {"settings": {"policy.collect.n_sample": 16 + 8 * rank}},  # alone, rank 1 would take three steps
        "stop_value": {"settings": {"env.stop_value": 1.0, "policy.eval.evaluator.eval_freq": 3}},
    }
    for name, case in cases.items():
        with together(config(folder / name, **case.get("settings", {}))) as cfg:
            found[name] = run(cfg, *case.get("extra", ()), limits=case.get("limits"))
    return found


def resumed(rank, folder):
    """A run that a signal ended, and one whose newest state is lost in one process, continued to the end of `max_step`."""
    found = {}
    with together(config(folder / "cut")) as cfg:
        run(cfg, at(2, 0, terminated), max_step=6)
    with together(config(folder / "cut", resume=str(folder / "cut"))) as cfg:
        found["cut"] = run(cfg, at(99, 0, terminated), max_step=6)
    with together(config(folder / "lost")) as cfg:
        run(cfg, at(3, 1, terminated), max_step=6)
    saved = sorted((folder / "lost" / "rank_1" / "run").glob("state_*.pt"), key=lambda path: path.stat().st_mtime)
    if rank == 1:
        saved[-1].write_bytes(b"damaged")
    with together(config(folder / "lost", resume=str(folder / "lost"))) as cfg:
        found["lost"] = run(cfg, at(99, 0, terminated), max_step=6)
    found["saved"] = [path.name for path in saved]
    with together(config(folder / "whole")) as cfg:
        found["whole"] = run(cfg, at(99, 0, terminated), max_step=6)
    return found


def replayed(rank, folder):
    """DQNs that learn from a replay buffer in each process, which is ready to learn earlier in rank 0."""
    return {kind: learned_from_replay(kind, rank, folder) for kind in ("learner", "fetcher", "episodes", "own fetcher")}


def learned_from_replay(kind, rank, folder):
    """The whole policy, the gradient steps after each iteration, and the buffer."""
    settings = {
        "exp_name": str(folder / "replayed"),
        "env": {"collector_env_num": 2, "evaluator_env_num": 1, "max_episode_steps": 12},
        "policy.collect": {"n_sample": 8, "n_episode": 2},
        "policy.learn": {"batch_size": 4 + rank, "learning_starts": 8 + 40 * rank, "update_per_collect": 2},
        "policy.model.encoder_hidden_size_list": [8],
    }
    with together(DQNConfig().override(settings)) as cfg:
        env = make_envs(cfg.env.id, cfg.env.collector_env_num, seed=cfg.seed, **cfg.env.options())
        policy = DQNPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
        buffer_, steps_taken = ReplayBuffer(100, seed=cfg.seed), []

        @contract(writes=("train_data",), uses=(buffer_,), stage="learn")
        def fetch(ctx):
            ctx.train_data = buffer_.sample(4) if len(buffer_) >= cfg.policy.learn.learning_starts else None

        @contract(reads=("train_iter",), stage="record")
        def note(ctx):
            steps_taken.append(ctx.train_iter)

        task = Task()
        with task.start(ctx=OnlineRLContext()):
            task.use(eps_greedy_handler(cfg))
            collector = EpisodeCollector if kind == "episodes" else StepCollector
            task.use(collector(cfg, policy.collect_mode, env))
            task.use(data_pusher(cfg, buffer_))
            if kind in ("learner", "episodes"):
                task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
            else:
                task.use(fetch if kind == "own fetcher" else offpolicy_data_fetcher(cfg, buffer_, policy.learn_mode))
                task.use(trainer(cfg, policy.learn_mode))
            task.use(note)
            task.use(ddp_termination_checker())
            task.run(8)
            return policy.state_dict(), steps_taken, buffer_.state_dict()


# Learning from a dataset: compared with one process.

OFFLINE_STEPS = 7


def recorded(space, seed=0):
    """A dataset in memory, of 41 steps."""
    rng, ends = np.random.default_rng(seed), np.arange(41) % 9 == 8
    space.seed(seed)
    obs = rng.normal(size=(42, 3)).astype(np.float32)
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.stack([space.sample() for _ in range(41)])}
    columns |= {"reward": rng.normal(size=41).astype(np.float32), "terminated": ends, "truncated": ends & False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return open_dataset(columns)


def learned(kind, batch_size, seed=0):
    """The weights of a policy after some batches of a dataset, the passes, and the rows of this process."""
    cls, cfg = {"bc": (BCPolicy, BCConfig()), "dt": (DecisionTransformerPolicy, DecisionTransformerConfig())}[kind]
    cfg.override({"seed": 5, "policy.learn.batch_size": batch_size, "policy.model.normalize_obs": False})
    cfg.override({"policy.model.encoder_hidden_size_list": [8]} if kind == "bc" else {"policy.context_length": 3})
    cfg.override({"policy.target_return": 1.0, "policy.model.size": 8} if kind == "dt" else {})
    with together(cfg) if "RANK" in os.environ else contextlib.nullcontext(cfg) as cfg:
        actions = ACTIONS if kind == "bc" else OBSERVATIONS  # one-hot vectors of actions are float32
        policy = cls(cfg.policy, OBSERVATIONS, actions)
        fetch = offline_data_fetcher(cfg, recorded(actions, seed), policy.learn_mode)
        policy.model.double()
        ctx, rows = OfflineRLContext(), []
        for _ in range(OFFLINE_STEPS):
            fetch(ctx)
            rows.append(len(ctx.train_data.action))
            wide = map_leaves(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, nested(ctx.train_data))
            policy.gradient_step(tree(wide))
        return [it.detach().clone() for it in policy.params], ctx.train_epoch, rows


def offline(rank, folder):
    found = {kind: learned(kind, 5) for kind in ("bc", "dt")}
    try:
        learned("bc", 5, seed=rank)
    except (ValueError, RankError) as error:
        found["error"] = str(error)
    return found


# Mistakes.


def broken():
    raise ValueError("the simulator is gone")


def interrupted():
    raise KeyboardInterrupt


def left():
    sys.exit(3)


def other_weights(policy):
    if current_ranks().rank == 1:
        with torch.no_grad():
            policy.params[0].add_(0.1)
        policy.bump_version()


def diverging(iteration, *more):
    """Rank 1 changes its weights in this iteration."""
    policies = []
    return {"change": policies.append, "extra": [at(iteration, 1, lambda: other_weights(policies[0])), *more]}


def spoiling(iteration, *more):
    """The weights of rank 0 become NaN in this iteration, after its gradient steps."""
    policies = []

    @contract(stage="record")
    def spoil(ctx):
        if ctx.total_step == iteration and current_ranks().rank == 0:
            with torch.no_grad():
                policies[0].params[0].fill_(torch.nan)

    return {"change": policies.append, "late": [spoil], "extra": more}


def once_more(policy):
    """Rank 0 takes one more gradient step per batch."""
    if current_ranks().rank == 0:
        learn = policy.learn_on_batch

        def twice(batch):
            learn(batch)
            return learn(batch)

        policy.learn_on_batch = twice


def not_averaged(policy):
    def compute_gradients(loss):
        loss.backward()
        return {}

    policy.compute_gradients = compute_gradients


def backward_itself(policy, optimizer, loss):
    loss.backward()


class Learning:
    """A reward model that learns."""

    def estimate(self, batch):
        return batch

    def learn(self, batch):
        return {}


def mistakes(rank, folder):
    """The error that each mistake raises, and how long it takes."""
    found = {}
    cases = {
        "error": {"extra": [at(2, 1, broken)]},
        "interrupt": {"extra": [at(2, 1, interrupted)]},
        "exit": {"extra": [at(2, 0, left)]},
        "weights": {"change": other_weights},
        "before a checkpoint": diverging(3),  # which is due after gradient steps 4 and 8, in iterations 1 and 3
        "before the end": diverging(4, at(4, 1, finished)),
        "NaN before the end": spoiling(4, at(4, 1, finished)),
        "steps": {"change": once_more},
        "gradients": {"change": not_averaged},
        "backward": {"kind": PPOPolicy.with_updates(gradients_fn=backward_itself)},
        "reward_model": {"change": lambda policy: require_reward_model("reward_estimator", Learning())},
        "checker": {"checker": False},
        "lag": {"max_lag": 1},
        "limits": {"max_step": 2 + rank},
    }
    for name, case in cases.items():
        began = time.monotonic()
        try:
            with together(config(folder / name)) as cfg:
                run(cfg, *case.pop("extra", ()), **case)
        except BaseException as error:  # noqa: BLE001 - it is what is tested
            found[name] = f"{type(error).__name__}: {error}", time.monotonic() - began
    found["saved"] = {name: _saved_in(folder / name) for name in cases if "before" in name}
    try:
        with together(config(folder / "async", async_mode=True)):
            pass
    except ValueError as error:
        found["async"] = str(error), 0.0
    return found


def _saved_in(run):
    """The names of the checkpoints, and the iterations after which the state of the run was saved."""
    return sorted(path.name for path in (run / "ckpt").iterdir()), RunFiles(run).saved()


def not_resumed(rank, folder):
    """The error of runs that were saved by another number of processes, or that are not there."""
    found = {}
    if rank == 0:
        RunFiles(folder / "by one").save({"done": 1}, 1)
    for name in ("by one", "absent"):
        try:
            with together(config(folder / "other", resume=str(folder / name))):
                raise AssertionError("it has begun")
        except RankError as error:
            found[name] = str(error)
    return found


def compared(rank, folder):
    """The error that each pair of tensors raises, of which only one is that of the other rank; "" if there is none."""
    numbers = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    swapped, one_other = numbers[0].clone(), numbers[0].clone()
    swapped[[3, 4]], one_other[5] = numbers[0, [4, 3]], numbers[0, 5] + 1e-4
    unknown, mask = torch.full((3,), torch.nan), torch.full((3, 3), -torch.inf).triu(1)
    cases = {
        "equal": (numbers, numbers.clone()),
        "rounded": (numbers, numbers.double().float() + 1e-8),
        "counts": (torch.tensor(10**9), torch.tensor(10**9)),
        "nothing": (torch.zeros(0), torch.zeros(0)),
        "a mask": (mask, mask.clone()),
        "another mask": (mask, mask.T),
        "rows in another order": (numbers, numbers.flip(0)),
        "two numbers in another order": (numbers[0], swapped),
        "one number": (numbers[0], one_other),
        "zeros": (torch.zeros(3), torch.tensor([0, 1e-9, 0])),
        "NaN in one": (torch.zeros(3), unknown),
        "NaN in both": (unknown, unknown),
    }
    found = {}
    for name, pair in cases.items():
        next_port()
        with contextlib.suppress(RankError), joined(TIMEOUT_S) as ranks:
            found[name] = ""
            try:
                ranks.require_equal("the start", [torch.ones(2), pair[rank]])
            except RankError as error:
                found[name] = str(error)
                raise
    return found


def killed(rank, folder):
    """The error of rank 0 after rank 1 was killed."""
    began = time.monotonic()
    try:
        with together(config(folder / "killed")) as cfg:
            run(cfg, at(2, 1, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}", time.monotonic() - began
    return None


PROGRAMS = {
    fn.__name__: fn
    for fn in (
        *(gradient_steps, all_policies, running_statistics, whole_runs, replayed, offline),
        *(resumed, not_resumed, mistakes, compared, killed),
    )
}


def start(folder, only=tuple(PROGRAMS)):
    """Run programs in two processes. Returns the results of both by program, the exit codes, and what they wrote."""
    ports = []
    with contextlib.ExitStack() as held:
        for _ in range(BLOCKS):
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(str(one.getsockname()[1]))
    started = []
    for rank in range(2):
        arguments = (folder, rank, ports, only)
        started.append(multiprocessing.get_context("forkserver").Process(target=main, args=arguments))  # torch is imported
        started[-1].start()
    try:
        for one in started:
            one.join(100)
        codes = [one.exitcode for one in started]
    finally:
        for one in started:
            one.kill()
    results = {}
    for name in only:
        files = [folder / f"{name}_{rank}.pkl" for rank in range(2)]
        results[name] = [pickle.loads(file.read_bytes()) if file.is_file() else None for file in files]
    return results, codes, [Path(folder, f"output_{rank}.txt").read_text() for rank in range(2)]


def main(folder, rank, ports, names):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    output = os.open(folder / f"output_{rank}.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    torch.set_num_threads(1)
    _ports.extend(ports)
    for name in names:
        began = time.monotonic()
        result = PROGRAMS[name](rank, folder)
        print(name, rank, round(time.monotonic() - began, 2), file=sys.stderr)
        Path(folder, f"{name}_{rank}.pkl").write_bytes(pickle.dumps(result))
