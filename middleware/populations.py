"""Populations: a round in which every member advances, and the worse members copy the better ones."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ding_lite.contexts import PopulationContext
from ding_lite.engine import contract, current_task
from ding_lite.metrics import MetricsLogger


class SteppedPopulation(Protocol):
    """The interface that the middleware need from a `Population`."""

    @property
    def sign(self) -> int:
        """1 if larger scores are better, otherwise -1."""

    @property
    def values(self) -> Mapping[str, Mapping[str, Any]]:
        """The explored settings of each member."""

    @property
    def is_finished(self) -> bool:
        """Whether every member has finished."""

    def advance(self) -> dict[str, dict[str, Any]]:
        """Run a slice of every member. Returns their results by name."""

    def scores(self, results: Mapping[str, Mapping[str, Any]], /) -> dict[str, Any]:
        """The scores of these results by name."""

    def evolve(self, scores: Mapping[str, Any], /) -> list[dict[str, Any]]:
        """Exploit and explore. Returns the decisions."""


def population_trainer(population: SteppedPopulation) -> Callable[[PopulationContext], None]:
    """Run a slice of every member, `cfg.interval` iterations, and compute their scores.

    If every member has finished, because a middleware of its pipeline has ended its run, the run of the population ends.

    Reads:
        ctx.env_step, ctx.train_iter.
    Writes:
        ctx.member_results, ctx.scores; ctx.env_step, ctx.train_iter; ctx.eval_value, ctx.last_eval_value, ctx.last_eval_iter:
            the best score, negated if lower is better; ctx.eval_metrics: best and median score, and the score of each member.

    Args:
        population: a `ding_lite.distributed.Population`.

    Raises:
        PopulationError: in an iteration, too few members are left.
    """
    metrics = MetricsLogger(owner="population_trainer")
    known: dict[str, dict[str, int]] = {}

    @contract(
        reads=("env_step", "train_iter"),
        writes=("member_results", "scores", "env_step", "train_iter", "eval_value", "last_eval_value", "last_eval_iter"),
        may_read=("eval_metrics",),
        may_write=("eval_metrics",),
        uses=(population,),
        stage="collect",
    )
    def step(ctx: PopulationContext) -> None:
        results = population.advance()
        for name in known.keys() - results.keys():  # it has failed; a new member by this name begins at 0
            del known[name]
        for name, result in results.items():
            before = known.get(name, {})
            known[name] = {counter: int(result.get(counter, 0)) for counter in ("env_step", "train_iter")}
            ctx.env_step += _more(known[name]["env_step"], before.get("env_step", 0))
            ctx.train_iter += _more(known[name]["train_iter"], before.get("train_iter", 0))
        scores = population.scores(results)
        ctx.member_results, ctx.scores = results, scores
        if scores:
            order = sorted((score.value * population.sign for score in scores.values()), reverse=True)
            ctx.eval_value = ctx.last_eval_value = order[0]
            ctx.last_eval_iter = ctx.train_iter
            metrics.log_value("best", order[0] * population.sign, reduce="item")
            metrics.log_value("median", statistics.median(order) * population.sign, reduce="item")
            for name, score in scores.items():
                metrics.log_value(("score", name), score.value, reduce="item")
            ctx.eval_metrics = [*ctx.eval_metrics, metrics.reduce()]
        if population.is_finished:
            current_task().finish_because("every member has finished")

    def load_state_dict(state: Mapping[str, Any]) -> None:
        known.clear()
        known.update({name: dict(counts) for name, counts in state["known"].items()})

    step.__dict__.update(state_dict=lambda: {"known": known}, load_state_dict=load_state_dict)
    step.__qualname__ = "population_trainer.<locals>.step"
    return step


def _more(now: int, before: int) -> int:
    """The steps of a member since its last result. A smaller counter is that of a new member, which begins at 0."""
    return now - before if now >= before else now


def population_exploiter(population: SteppedPopulation) -> Callable[[PopulationContext], None]:
    """Let the worse members copy weights and settings from better ones, and explore other settings.

    Each decision is a line of `decisions.jsonl`.

    Reads:
        ctx.scores.
    Writes:
        ctx.decisions, ctx.learn_metrics: the settings of each member.

    Args:
        population: a `ding_lite.distributed.Population`.

    Reference:
        Jaderberg et al. (2017), "Population Based Training of Neural Networks", https://arxiv.org/abs/1711.09846.
    """
    metrics = MetricsLogger(owner="population_exploiter")

    @contract(
        reads=("scores",),
        writes=("decisions",),
        may_read=("learn_metrics",),
        may_write=("learn_metrics",),
        uses=(population,),
        stage="learn",
    )
    def exploit(ctx: PopulationContext) -> None:
        for name, values in population.values.items():
            for setting, value in values.items():
                if isinstance(value, (int, float)):
                    metrics.log_value((name, setting), value, reduce="item")
        ctx.learn_metrics = [*ctx.learn_metrics, metrics.reduce()]
        ctx.decisions = population.evolve(ctx.scores)

    return exploit


population_stepper = population_trainer  # its name in earlier versions
