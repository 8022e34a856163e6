"""TrainOutput: one type for what every learner returned, a dict for each gradient step, and values by name."""

import copy
import pickle

import numpy as np
import pytest
import torch

from ding_lite.contexts import TrainOutput
from ding_lite.contexts.train_outputs import train_output_of


def test_by_name_it_is_the_mean_over_the_steps_that_have_the_value():
    output = TrainOutput(
        [{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(4.0), "kl": 2}, {"kl": 3, "priority": torch.ones(4)}]
    )

    assert (float(output["loss"]), output["kl"]) == (2.5, 2.5)
    assert torch.equal(output["priority"], torch.ones(4))
    assert [*output.keys()] == ["loss", "kl", "priority"]
    assert {**output}.keys() == dict(output.items()).keys() == set(output.keys())
    assert ("kl" in output, "nothing" in output, {"loss": 5} in output) == (True, False, False)
    assert (output.get("kl"), output.get("nothing"), output.get("nothing", 3)) == (2.5, None, 3)
    with pytest.raises(KeyError, match=r"'nothing' is in no gradient step: there are \['loss', 'kl', 'priority'\]"):
        output["nothing"]


def test_by_number_it_is_the_list_of_steps():
    steps = [{"loss": 1.0}, {"loss": 2.0}]
    output = TrainOutput(steps)

    assert (output[0], output[-1], output[:1], len(output), [*output]) == (steps[0], steps[1], steps[:1], 2, steps)
    assert pickle.loads(pickle.dumps(output)) == output == steps


def test_the_value_of_several_rows_is_that_of_the_last_step():
    output = TrainOutput([{"priority": torch.zeros(3)}, {"priority": torch.ones(3)}])
    assert torch.equal(output["priority"], torch.ones(3))


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"a": 1}, [{"a": 1}]),
        ([{"a": 1}, {"b": 2}], [{"a": 1}, {"b": 2}]),
        (({"a": 1}, {"b": 2}), [{"a": 1}, {"b": 2}]),
        (None, []),
        ("text", []),
        ([1, {"a": 1}], [{"a": 1}]),
    ],
)
def test_what_a_learner_of_ones_own_set_is_read_as_that_type(given, steps):
    output = train_output_of(given)
    assert (type(output), [*output]) == (TrainOutput, steps)


def test_it_is_logged_as_long_as_it_is_as_it_was_logged():
    loss = torch.tensor(float("nan"))
    output = TrainOutput([{"loss": loss}, {"loss": 2.0}])
    assert not output.is_logged
    output.is_logged = True
    assert output.is_logged
    assert copy.deepcopy(output).is_logged
    assert not TrainOutput(output).is_logged
    for change in (lambda it: it.append({}), lambda it: it[0].update(loss=1.0), lambda it: it[1].update(mine=1), list.pop):
        other = copy.deepcopy(output)
        change(other)
        assert not other.is_logged
    output.is_logged = False
    assert not output.is_logged


def test_a_value_that_is_the_mean_of_several_gradient_steps_has_their_weight():
    output = TrainOutput([{"loss": 1.0, "kl": 1.0}, {"loss": 4.0}])
    output.num_steps = [{"loss": 2}, {}]

    assert (output["loss"], output["kl"]) == (2.0, 1.0)
    assert train_output_of(output)["loss"] == 2.0
    output.append({"loss": 1.0})
    assert output["loss"] == 2.0  # the numbers of steps do not belong to these dicts any more


def logged():
    output = TrainOutput([{"loss": torch.tensor(1.0), "group": {"a": 1.0}}, {"loss": torch.tensor(2.0)}])
    output.is_logged = True
    return output


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it.append({"loss": 1.0}),
        lambda it: it.pop(),
        lambda it: it[0].update(mine=1.0),
        lambda it: it[0].update(loss=torch.tensor(1.5)),
        lambda it: it[0].update(loss=torch.ones(3)),
        lambda it: it[0].update(loss=np.ones(3)),
        lambda it: it[0].pop("loss"),
        lambda it: it[0]["group"].update(mine=1.0),
        lambda it: it[0].update(group=None),
        lambda it: it.__setitem__(0, None),
        lambda it: it.__setitem__(1, 3.0),
        lambda it: it.__setitem__(1, ["loss"]),
        lambda it: it.__setitem__("mine", 1.0),
        lambda it: it.reverse(),
    ],
)
def test_a_change_of_what_was_logged_is_seen(change):
    output = logged()
    assert output.is_logged
    change(output)

    assert not output.is_logged


def test_an_equal_value_is_no_change():
    output = logged()
    output[0]["loss"] = torch.tensor(1.0)
    assert output.is_logged


def test_a_value_set_by_name_is_that_of_each_step():
    output, empty = logged(), TrainOutput()
    output["mine"] = empty["mine"] = 3.0

    assert (output["mine"], [step["mine"] for step in output], empty) == (3.0, [3.0, 3.0], [{"mine": 3.0}])


@pytest.mark.parametrize(
    "number",
    [
        float,
        int,
        np.float32,
        np.float64,
        np.int64,
        np.uint8,
        lambda value: np.array([value], np.float32),
        lambda value: np.array(value),
        lambda value: torch.tensor([value], dtype=torch.uint8),
        lambda value: torch.tensor(float(value)),
    ],
)
def test_a_number_of_any_type_is_averaged(number):
    output = TrainOutput([{"loss": number(200)}, {"loss": number(100)}, {"loss": number(150)}])
    assert float(output["loss"]) == 150

    output.num_steps = [{"loss": 3}, {}, {}]
    assert float(output["loss"]) == pytest.approx(170)


@pytest.mark.parametrize("flag", [bool, np.bool_, torch.tensor])
def test_the_mean_of_truth_values_is_the_fraction_of_true_ones(flag):
    assert float(TrainOutput([{"is_clipped": flag(value)} for value in (True, True, False, True)])["is_clipped"]) == 0.75


@pytest.mark.parametrize("value", [np.ones(3), torch.ones(3), "text", None, np.array(["text"]), [1.0]])
def test_of_what_is_no_number_it_is_the_last_value(value):
    output = TrainOutput([{"priority": 2.0}, {"priority": value}])
    assert output["priority"] is value
