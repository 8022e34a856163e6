"""Recipes: JSON of the standard gives back how an environment is made."""

import functools
import json
import math

from ding_lite.envs.recipes import made_from, recipe_of


def test_a_recipe_with_numbers_that_json_does_not_have_is_json_of_the_standard():
    given = {"limit": math.inf, "name": "Infinity", "table": [(-math.inf, 0.5)], "missing": math.nan}
    recipe = recipe_of(functools.partial(dict, **given))
    made = made_from(json.loads(json.dumps(recipe, allow_nan=False)))()

    assert math.isnan(made.pop("missing"))
    assert made == {"limit": math.inf, "name": "Infinity", "table": [(-math.inf, 0.5)]}


def test_a_recipe_of_an_earlier_version_with_such_numbers_makes_the_same():
    recipe = {"call": {"import": "builtins:dict"}, "args": {"tuple": []}, "kwargs": {"dict": {"limit": math.inf}}}

    assert made_from(json.loads(json.dumps(recipe)))() == {"limit": math.inf}
