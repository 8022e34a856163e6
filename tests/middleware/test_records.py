"""CkptSaver and online_logger: what stays of a run, and what a person sees of it."""

import csv
import json
import math
import warnings

import pytest
import torch

from ding_lite import Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import load_checkpoint
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import DQNPolicy, PPOPolicy


def parts(tmp_path, **options):
    cfg = PPOConfig().override({"env.stop_value": None, "policy.collect.n_sample": 64, "policy.learn.epoch_per_collect": 1})
    cfg.override({"policy.eval.evaluator.eval_freq": 2, "env.n_evaluator_episode": 2, **options})
    cfg.exp_name = tmp_path / "run"
    envs, tests = make_envs("CartPole-v1", 4, seed=0), make_envs("CartPole-v1", 2, seed=1, max_episode_steps=40)
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    pipeline = [
        interaction_evaluator(cfg, policy.eval_mode, tests),
        StepCollector(cfg, policy.collect_mode, envs),
        gae_estimator(cfg, policy.collect_mode),
        multistep_trainer(cfg, policy.learn_mode),
    ]
    return cfg, policy, pipeline


def run(pipeline, steps, **mode):
    task = Task()
    with task.start(ctx=OnlineRLContext(), **mode):
        for one in pipeline:
            task.use(one)
        task.run(max_step=steps)
    return task


def test_the_best_checkpoint_holds_the_weights_that_were_evaluated(tmp_path):
    cfg, policy, pipeline = parts(tmp_path)
    evaluated = []

    def note(ctx):
        if ctx.eval_weights is not None:
            evaluated.append((ctx.eval_value, ctx.eval_weights))

    run([*pipeline, note, CkptSaver(policy, cfg.exp_name)], 12)
    best = load_checkpoint(tmp_path / "run/ckpt/best.pt")
    value, weights = max(evaluated, key=lambda pair: pair[0])

    assert best["eval_value"] == value
    assert all(torch.equal(best["model"][name], weight) for name, weight in weights.items())
    assert any(not torch.equal(best["model"][name], weight) for name, weight in policy.get_weights().items())


def test_the_best_checkpoint_evaluates_to_its_value_again(tmp_path):
    cfg, policy, pipeline = parts(tmp_path)
    run([*pipeline, CkptSaver(policy, cfg.exp_name)], 1)  # one evaluation, of the first episodes
    best = load_checkpoint(tmp_path / "run/ckpt/best.pt")
    _, other, again = parts(tmp_path)
    other.set_weights(best["model"])
    ctx = OnlineRLContext()
    again[0](ctx)

    assert ctx.eval_value == best["eval_value"]


def test_the_final_checkpoint_is_the_policy_as_it_ended_also_when_max_step_ends_it(tmp_path):
    cfg, policy, pipeline = parts(tmp_path)
    run([CkptSaver(policy, cfg.exp_name), *pipeline], 3)  # even where the saver stands first
    final = load_checkpoint(tmp_path / "run/ckpt/final.pt")

    assert all(torch.equal(final["model"][name], weight) for name, weight in policy.get_weights().items())
    assert final["counters"] == {
        "total_step": 3,
        "env_step": 192,
        "env_episode": final["counters"]["env_episode"],
        "train_iter": policy.version,
    }


def test_a_finish_set_by_a_later_middleware_is_saved_too(tmp_path):
    cfg, policy, pipeline = parts(tmp_path)
    task = Task()

    def stop(ctx):
        task.finish = ctx.total_step == 2

    with task.start(ctx=OnlineRLContext()):
        for one in (*pipeline, CkptSaver(policy, cfg.exp_name), stop):
            task.use(one)
        task.run(max_step=100)

    assert load_checkpoint(tmp_path / "run/ckpt/final.pt")["counters"]["total_step"] == 3


def test_regular_checkpoints_come_every_train_freq_and_only_the_last_stay(tmp_path):
    cfg, policy, pipeline = parts(tmp_path, **{"policy.learn.batch_size": 32})
    run([*pipeline, CkptSaver(policy, cfg.exp_name, train_freq=4, save_finish=False, keep_last=2)], 9)  # 2 gradient steps each
    names = {path.name for path in (tmp_path / "run/ckpt").iterdir()}

    assert names == {"best.pt", "iteration_12.pt", "iteration_16.pt"}


def test_learning_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path):
    cfg, policy, pipeline = parts(tmp_path)
    run([*pipeline, CkptSaver(policy, cfg.exp_name)], 3)
    _, other, _ = parts(tmp_path)
    other.load_state_dict(load_checkpoint(tmp_path / "run/ckpt/final.pt"))
    ctx = OnlineRLContext()
    pipeline[1](ctx), pipeline[2](ctx)
    for one in (policy, other):
        one.learn_mode.forward(ctx.train_data)

    assert all(torch.equal(other.get_weights()[name], weight) for name, weight in policy.get_weights().items())


def test_a_context_without_evaluation_can_be_saved_from_too(tmp_path):
    import dataclasses

    from ding_lite import Context

    @dataclasses.dataclass
    class Small(Context):
        train_iter: int = 5

    _, policy, _ = parts(tmp_path)
    task = Task()
    with task.start(ctx=Small()):
        task.use(CkptSaver(policy, tmp_path / "small", train_freq=1)).run(max_step=1)

    assert load_checkpoint(tmp_path / "small/ckpt/iteration_5.pt")["counters"] == {"total_step": 1, "train_iter": 5}


def test_a_saver_that_would_never_save_is_refused(tmp_path):
    _, policy, _ = parts(tmp_path)
    with pytest.raises(ValueError, match="train_freq=0.* is at least 1"):
        CkptSaver(policy, tmp_path, train_freq=0)


def test_the_savers_memory_can_be_saved_and_restored(tmp_path):
    cfg, policy, pipeline = parts(tmp_path)
    saver, other = CkptSaver(policy, cfg.exp_name, train_freq=1), CkptSaver(policy, tmp_path / "other", train_freq=1)
    run([*pipeline, saver], 2)
    other.load_state_dict(saver.state_dict())

    assert other.state_dict() == saver.state_dict()
    assert saver.state_dict()["best"] > 0


def logged(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]


def test_the_logger_writes_the_curve_and_the_configuration(tmp_path, capsys):
    cfg, _, pipeline = parts(tmp_path)
    cfg.log.every_s = math.inf
    task = run([*pipeline, online_logger(cfg, show_every_s=0, train_show_freq=1)], 4)
    rows = logged(tmp_path)

    assert [row["env_step"] for row in rows] == [64, 128, 192, 256]
    assert rows[0]["evaluate/episode_return_mean"] > 0
    assert "evaluate/episode_return_mean" not in rows[1]
    learned = {"learn/total_loss", "learn/entropy", "learn/kl"}
    assert {"time_s", "train_iter", "collect/episode_return_mean", *learned} <= rows[-1].keys()
    assert rows[-1]["train_iter"] == task.ctx.train_iter
    with open(tmp_path / "run/metrics.csv", newline="") as file:
        assert [int(row["env_step"]) for row in csv.DictReader(file)] == [64, 128, 192, 256]
    assert (tmp_path / "run/pipeline.svg").read_text().startswith("<svg")
    written = (tmp_path / "run/config.json").read_text()
    assert PPOConfig.from_dict(json.loads(written, parse_constant=pytest.fail)) == cfg


def test_the_console_shows_what_one_wants_to_see(tmp_path, capsys):
    cfg, _, pipeline = parts(tmp_path)
    run([*pipeline, online_logger(cfg, show_every_s=0)], 4)
    lines = capsys.readouterr().out.splitlines()

    for word in ("step 128", "steps/s", "return", "eval", "loss", "entropy", "time left "):
        assert word in lines[1], lines[1]
    assert "time left" not in lines[3]
    assert "because max_step=4 was reached" in lines[-1]
    assert "Curve: " in lines[-1]
    assert "ckpt" not in lines[-1]  # no saver is there


@pytest.mark.parametrize("mode", [{"async_mode": True}, {"max_lag": 1}])
def test_of_iterations_that_overlap_the_lanes_are_kept_as_a_picture_and_in_words(tmp_path, mode):
    cfg, _, pipeline = parts(tmp_path)
    run([*pipeline, online_logger(cfg)], 3, **mode)

    assert (tmp_path / "run/timeline.svg").read_text().startswith("<svg")
    assert (tmp_path / "run/lanes.txt").read_text().startswith("3 iterations in ")


@pytest.mark.parametrize("output", [None, "nothing", torch.ones(3), [1, 2], {}, []])
def test_what_a_learner_of_ones_own_puts_out_may_be_anything(tmp_path, output):
    def learn(ctx):
        ctx.train_output = output

    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(learn).use(online_logger(DQNConfig(exp_name=tmp_path / "run"))).run(max_step=2)

    assert not [name for name in logged(tmp_path)[-1] if name.startswith("learn/")]


def test_an_earlier_curve_in_the_same_folder_is_moved_aside(tmp_path):
    for _ in range(3):
        cfg, _, pipeline = parts(tmp_path)
        run([*pipeline, online_logger(cfg)], 1)

    assert {path.name for path in (tmp_path / "run").glob("*.jsonl")} == {"metrics.jsonl", "metrics.1.jsonl", "metrics.2.jsonl"}


def test_logging_changes_nothing_in_the_context(tmp_path):
    cfg, _, pipeline = parts(tmp_path)
    seen = []

    def before(ctx):
        yield
        seen.append((id(ctx.train_output), dict(ctx.train_output), dict(ctx.collect_kwargs)))

    def after(ctx):
        seen.append((id(ctx.train_output), dict(ctx.train_output), dict(ctx.collect_kwargs)))

    run([before, *pipeline, online_logger(cfg, show_every_s=0, train_show_freq=1), after], 1)

    assert seen[0] == seen[1]


def test_a_full_disk_costs_the_curve_and_one_warning_but_not_the_run(tmp_path):
    class Full:
        def write(self, row):
            raise OSError("no space left on device")

        def close(self):
            pass

    cfg, _, pipeline = parts(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task = run([*pipeline, online_logger(cfg, show_every_s=0, train_show_freq=1, sinks=[Full()])], 3)

    assert task.ctx.total_step == 2
    assert len([warning for warning in caught if "no space left on device" in str(warning.message)]) == 1
    assert len(logged(tmp_path)) == 4  # three iterations, and the evaluation of the final weights


def test_without_a_configuration_it_only_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, _, pipeline = parts(tmp_path / "elsewhere")
    run([*pipeline, online_logger(show_every_s=0)], 2)

    assert "step 128" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_does_not_know_are_text(tmp_path):
    cfg = DQNConfig(exp_name=tmp_path / "run")
    logger, task = online_logger(cfg, train_show_freq=1), Task()

    def learn(ctx):
        ctx.train_iter += 1
        ctx.train_output = [
            {"loss": torch.tensor(float("nan")), "q_value": torch.tensor(float("nan"))},
            {"loss": torch.tensor(1.0), "q_value": torch.tensor(float("inf"))},
        ]

    with task.start(ctx=OnlineRLContext()):
        task.use(learn).use(logger).run(max_step=1)

    assert logged(tmp_path)[0]["learn/loss"] == 1.0  # NaN is left out of a mean
    assert logged(tmp_path)[0]["learn/q_value"] == "Infinity"


def test_checkpoints_of_an_earlier_run_in_the_folder_make_room(tmp_path):
    envs = make_envs("CartPole-v1", 2)
    policy = DQNPolicy(DQNConfig().policy, envs.single_observation_space, envs.single_action_space)
    for first in (50, 10):  # the second run is the shorter one
        saver = CkptSaver(policy, tmp_path, train_freq=1, save_finish=False)
        for train_iter in range(first, first + 3):
            ctx = OnlineRLContext()
            ctx.train_iter = train_iter
            list(saver(ctx))

    assert {path.name for path in (tmp_path / "ckpt").iterdir()} == {f"iteration_{n}.pt" for n in (10, 11, 12)}
    assert {path.name for path in (tmp_path / "ckpt.1").iterdir()} == {f"iteration_{n}.pt" for n in (50, 51, 52)}


def test_the_best_weights_can_be_loaded_into_a_policy(tmp_path):
    envs = make_envs("CartPole-v1", 2)
    policy, other = (
        DQNPolicy(DQNConfig().override({"seed": seed}).policy, envs.single_observation_space, envs.single_action_space)
        for seed in (0, 1)
    )
    ctx = OnlineRLContext()
    ctx.eval_value, ctx.eval_weights = 7.0, policy.get_weights()
    list(CkptSaver(policy, tmp_path, save_finish=False)(ctx))
    other.load_state_dict(load_checkpoint(tmp_path / "ckpt/best.pt"))
    obs = envs.reset()[0]

    assert (other.eval_mode.forward(obs)[0] == policy.eval_mode.forward(obs)[0]).all()
    assert all(torch.equal(one, two) for one, two in zip(other.get_weights().values(), policy.get_weights().values()))
    with pytest.raises(ValueError, match="this state was saved by a DQNPolicy, and this policy is a PPOPolicy"):
        PPOPolicy(None, envs.single_observation_space, envs.single_action_space).load_state_dict(
            load_checkpoint(tmp_path / "ckpt/best.pt")
        )
    with pytest.raises(ValueError, match="not a state of a policy: it lacks 'model'"):
        other.load_state_dict({})
    with pytest.raises(ValueError, match=r"state\[\"model\"\] is empty, expected the weights of a MLP"):
        other.load_state_dict({"model": {}})
