"""The reference learning runs: algorithms, tasks and target returns, with results reported elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Reference:
    """One algorithm on one task."""

    name: str
    """ALGORITHM_TASK."""

    script: str
    """In examples/."""

    target: float
    """Mean greedy return to reach, or the score of the example, such as a share of successes."""

    within: int
    """Environment steps."""

    seeds: int = 3
    """Runs, from seed 0 on."""

    options: Sequence[str] = ()
    """For the command line, where the settings are not the script's own."""

    peers: str = ""
    """What others report: who, return, environment steps."""

    long: bool = False
    """A seed takes more than 15 minutes on a core."""

    @property
    def command(self) -> str:
        """The command line that a user would run."""
        return " ".join(["python", f"examples/{self.script}", *self.options])


ACROBOT = ("--env.id", "Acrobot-v1", "--env.n-evaluator-episode", "16")
ENTROPY = ("--policy.learn.entropy-weight", "0.01")
MOUNTAIN_CAR_CONTINUOUS = (
    *("--env.id", "MountainCarContinuous-v0", "--policy.random-collect-size", "0", "--policy.learn.learning-starts", "4000"),
    *("--policy.learn.update-per-collect", "4", "--policy.learn.alpha", "0.2"),
    *("--policy.model.encoder-hidden-size-list", "64", "64", "--policy.collect.noise-correlation", "0.9"),
    *("--policy.eval.evaluator.eval-freq", "500", "--max-step", "6000"),
)
LUNAR_LANDER = (
    *("--env.id", "LunarLander-v3", "--env.collector-env-num", "16", "--env.n-evaluator-episode", "16"),
    *("--policy.collect.n-sample", "16384", "--policy.collect.discount-factor", "0.999", "--policy.collect.gae-lambda", "0.98"),
    *("--policy.learn.batch-size", "64", "--policy.learn.epoch-per-collect", "4", "--policy.learn.learning-rate", "3e-4"),
    *("--policy.learn.entropy-weight", "0.01", "--policy.eval.evaluator.eval-freq", "2048", "--max-step", "61"),
)
LUNAR_LANDER_REPLAY = (
    *("--env.id", "LunarLander-v3", "--env.n-evaluator-episode", "16", "--policy.other.replay-buffer-size", "100000"),
    *("--policy.model.n-atom", "51", "--policy.model.v-min", "-200", "--policy.model.v-max", "200"),
    *("--policy.learn.update-per-collect", "32", "--policy.learn.learning-rate", "3e-4", "--policy.learn.batch-size", "128"),
    *("--policy.learn.target-update-freq", "1", "--policy.learn.target-update-theta", "0.005"),
    *("--policy.other.eps.decay", "40000", "--policy.other.eps.end", "0.05"),
    *("--policy.eval.evaluator.eval-freq", "5000", "--max-step", "4690"),
)
TAXI = ("--env.id", "Taxi-v4", "--env.action-mask", "--env.evaluator-env-num", "20", "--env.n-evaluator-episode", "200")
DQN_TAXI = (
    *(*TAXI, "--policy.learn.update-per-collect", "32", "--policy.learn.target-update-freq", "200"),
    *("--policy.other.replay-buffer-size", "100000", "--policy.other.eps.decay", "30000", "--policy.other.eps.end", "0.05"),
    *("--policy.eval.evaluator.eval-freq", "2500", "--max-step", "1600"),
)
PPO_TAXI = (
    *(*TAXI, "--env.collector-env-num", "16", "--policy.collect.n-sample", "2048", "--policy.learn.batch-size", "256"),
    *("--policy.learn.epoch-per-collect", "4", *ENTROPY, "--policy.learn.lr-schedule", "0", "1e-3", "4700", "1e-4"),
    *("--policy.eval.evaluator.eval-freq", "160", "--max-step", "147"),
)
SAC_100K, TD3_500K = ("--max-step", "11876"), ("--max-step", "59376")
PONG_1M = ("--policy.eval.evaluator.eval-freq", "1600", "--max-step", "977")
IMPALA_LSTM = (
    *("--env.id", "CartPoleNoVel-v1", "--env.collector-env-num", "16", "--policy.model.lstm-size", "64"),
    *("--policy.model.normalize-obs", "--policy.collect.n-sample", "512", "--policy.collect.discount-factor", "0.98"),
    *("--policy.collect.gae-lambda", "0.8", "--policy.learn.batch-size", "128", "--policy.learn.epoch-per-collect", "4"),
    *("--policy.learn.learning-rate", "1e-3", "--policy.learn.value-weight", "0.1"),
    *("--policy.eval.evaluator.eval-freq", "200", "--max-step", "976"),
)
LAG_4 = ("--async-mode", "--max-lag", "4")

REFERENCES = (
    Reference("dqn_cartpole", "dqn.py", 475, 60_000, 5, (), "zoo 500.0 in 50k; CleanRL 488.7 in 500k"),
    Reference("dqn_cartpole_async", "dqn.py", 475, 60_000, 5, ("--async-mode",)),
    Reference("c51_cartpole", "c51.py", 475, 60_000, peers="CleanRL 481.2 in 500k"),
    Reference("qrdqn_cartpole", "qrdqn.py", 475, 60_000, peers="zoo 500.0 in 50k"),
    Reference("iqn_cartpole", "iqn.py", 475, 60_000),
    Reference("rainbow_cartpole", "rainbow.py", 475, 60_000),
    Reference("ppo_cartpole", "ppo.py", 475, 60_000, 5, (), "zoo 500.0 in 100k; CleanRL 490.0 in 500k"),
    Reference("ppo_cartpole_async", "ppo.py", 475, 60_000, 5, ("--async-mode",)),
    Reference("a2c_cartpole", "a2c.py", 475, 200_000, peers="zoo 500.0 in 500k"),
    Reference("reinforce_cartpole", "reinforce.py", 475, 200_000),
    Reference("impala_cartpole", "impala.py", 475, 200_000, 5),
    Reference("impala_cartpole_lag1", "impala.py", 475, 200_000, 5, ("--async-mode",)),
    Reference("impala_cartpole_lag4", "impala.py", 475, 200_000, 5, LAG_4),
    Reference("ppo_lstm_cartpole_novel", "ppo_lstm.py", 475, 200_000, peers="zoo 500.0 in 100k"),
    Reference("impala_lstm_cartpole_novel", "impala.py", 475, 500_000, 3, IMPALA_LSTM),
    Reference("ppo_transformer_cartpole_novel", "ppo_transformer.py", 475, 300_000),
    Reference("r2d2_cartpole_novel", "r2d2.py", 475, 200_000),
    Reference("ddpg_pendulum", "ddpg.py", -170, 20_000, peers="zoo -152.1 in 20k"),
    Reference("td3_pendulum", "td3.py", -170, 20_000, peers="zoo -151.9 in 20k"),
    Reference("sac_pendulum", "sac.py", -170, 20_000, peers="zoo -157.0 in 20k"),
    Reference("ppo_pendulum", "ppo_continuous.py", -250, 200_000, peers="zoo -172.2 in 100k"),
    Reference("dqn_acrobot", "dqn.py", -90, 100_000, 3, ACROBOT, "zoo -76.6 in 100k; CleanRL -91.5 in 500k"),
    Reference("c51_acrobot", "c51.py", -90, 100_000, 3, ACROBOT),
    Reference("qrdqn_acrobot", "qrdqn.py", -90, 100_000, 3, ACROBOT, "zoo -69.1 in 100k"),
    Reference("iqn_acrobot", "iqn.py", -90, 100_000, 3, ACROBOT),
    Reference("rainbow_acrobot", "rainbow.py", -90, 100_000, 3, ACROBOT),
    Reference("ppo_acrobot", "ppo.py", -90, 300_000, 3, ACROBOT, "zoo -73.5 in 1M; CleanRL -86.4 in 500k"),
    Reference("a2c_acrobot", "a2c.py", -90, 300_000, 3, (*ACROBOT, *ENTROPY), "zoo -83.4 in 500k"),
    Reference("sac_mountaincar_continuous", "sac.py", 90, 50_000, 3, MOUNTAIN_CAR_CONTINUOUS, "zoo 94.7 in 50k, with gSDE"),
    Reference("ppo_lunarlander", "ppo.py", 200, 1_000_000, 3, LUNAR_LANDER, "zoo 242.1 in 1M, on v2"),
    Reference("c51_lunarlander", "c51.py", 200, 300_000, 3, LUNAR_LANDER_REPLAY, "zoo's DQN 154.4 in 100k, on v2"),
    Reference("dqn_taxi", "dqn.py", 7.5, 100_000, 3, DQN_TAXI),
    Reference("ppo_taxi", "ppo.py", 7.5, 300_000, 3, PPO_TAXI),
    Reference("rnd_mountaincar", "rnd.py", -120, 150_000, peers="zoo's DQN -100.8 in 120k; CleanRL's -195.0 in 500k"),
    Reference("icm_mountaincar", "icm.py", -120, 150_000),
    Reference("sqil_cartpole", "sqil.py", 475, 60_000),
    Reference("gail_cartpole", "gail.py", 475, 60_000),
    Reference("her_bit_flip", "her.py", 0.9, 30_000),
    Reference("her_fetch", "her_fetch.py", 0.95, 25_000),
    Reference("ppo_hopper", "ppo_mujoco.py", 2400, 1_000_000, peers="tianshou 2370, on v3; CleanRL 2383, on v4; in 1M"),
    Reference("ppo_rock_paper_scissors", "rock_paper_scissors.py", 8, 25_000),
    Reference("ippo_simple_spread", "ippo.py", -50, 250_000),
    Reference("sac_halfcheetah", "sac_mujoco.py", 5500, 100_000, 3, SAC_100K, "tianshou 6212 in 100k, on v3", long=True),
    Reference("ppo_pong", "ppo_atari.py", -15, 1_000_000, 1, PONG_1M, long=True),
    Reference("td3_hopper", "td3_mujoco.py", 2500, 500_000, 3, TD3_500K, "tianshou 2670 in 500k, on v3", long=True),
)
