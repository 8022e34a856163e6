"""Compiled steps of a policy: chooses the form of each gradient step, makes what is missing, and tells what cannot be compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from ding_lite.compiling.forms import Form, UnfitError
from ding_lite.compiling.functional_steps import ALL_FINITE, trace_step
from ding_lite.compiling.packages import load_package, make_package
from ding_lite.compiling.tracing import NotCompiledError
from ding_lite.compiling.verification import Saved, reference_step, require_equal
from ding_lite.data import Tree, nested
from ding_lite.policy_check import LossError

MOST_FORMS = 6
"""Forms of the gradient step of a policy that are compiled."""


class CompiledSteps:
    """Takes gradient steps of one policy as compiled steps, where that is possible.

    The forms that were compiled in a run are part of the policy's state, so that a resumed run compiles the same ones.
    """

    varying: ClassVar[tuple[str, ...]] = ("forms",)
    is_learned: ClassVar[bool] = False

    def __init__(self) -> None:
        self.taken = 0
        """Compiled steps taken by this object."""
        self.refused = ""
        """Why no step is compiled; empty if steps are compiled."""
        self._forms: list[Form] = []
        self._known: list[str] = []  # digests of the forms that this run compiles
        self._has_warned = False

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledSteps:
        copied = type(self)()
        copied._known = [*self._known]
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self._known,)

    def take(self, policy: Any, batch: Tree, checks_gradients: bool, take: Callable[[], Mapping[str, Any]]) -> Outputs | None:
        """Take a gradient step; None if it cannot be compiled, and nothing has changed.

        The step does not change weights, moments or buffers if its loss, or the gradient norm among its statistics, is not
        finite.

        Args:
            policy: the policy.
            batch: the batch of the loss.
            checks_gradients: whether the step also changes nothing if a gradient is not finite.
            take: takes the step without compilation, for the verification; without hooks before and after it, and without
                counting it.
        """
        if self.refused:
            return None
        columns = nested(batch)
        try:
            for form in self._forms:
                if form.misfit(policy, columns) is None:
                    return self._taken(form, policy, columns)
            return self._taken_first(policy, batch, columns, checks_gradients, take)
        except UnfitError as error:
            self._refuse(policy, f"{error}.")
        except NotCompiledError as error:
            self._refuse(policy, str(error))
        return None

    def _taken(self, form: Form, policy: Any, columns: Mapping[str, Any]) -> Outputs | None:
        if form.package is None:
            return None
        found = form.take(policy, columns)
        self.taken += 1
        return Outputs(form, found)

    def _taken_first(
        self,
        policy: Any,
        batch: Tree,
        columns: Mapping[str, Any],
        checks_gradients: bool,
        take: Callable[[], Mapping[str, Any]],
    ) -> Outputs | None:
        """Trace, compile and verify a step of a new form, and take it."""
        if len(self._forms) >= 2 * MOST_FORMS or (len(self._forms) >= MOST_FORMS and len(self._known) <= len(self._forms)):
            return None
        try:
            form = Form(trace_step(policy, batch, checks_gradients), policy)
        except LossError:
            return None  # the step without compilation raises it
        if form.digest not in self._known and len(self._known) >= MOST_FORMS:
            why = next(filter(None, (other.misfit(policy, columns) for other in self._forms)), "it has another form")
            self._warn(policy, f"only {MOST_FORMS} forms of a gradient step are compiled, and in this one {why}. Such steps are not")
            self._forms.append(form)
            return None
        form.package = load_package(form.step.program) or make_package(form.step.program)
        outputs = self._verified(form, policy, columns, take)
        if outputs is not None:
            self._forms.append(form)
            if form.digest not in self._known:
                self._known.append(form.digest)
        return outputs

    def _verified(
        self, form: Form, policy: Any, columns: Mapping[str, Any], take: Callable[[], Mapping[str, Any]]
    ) -> Outputs | None:
        """Take a step, and compare it with one without compilation; None if that one raises LossError."""
        begun = form.begin(policy)
        try:
            before = Saved(form, policy)
            reference = reference_step(form, policy, take)
            outputs = self._taken(form, policy, columns)
            assert outputs is not None, "the form has a package"
            require_equal(form, before, reference, outputs.stats, form.held(policy))
        except LossError:
            self._forget(policy, begun)
            return None
        except NotCompiledError:
            before.restore()
            self._forget(policy, begun)
            raise
        return outputs

    @staticmethod
    def _forget(policy: Any, begun: list[Any]) -> None:
        """Delete the moments of these parameters, which no step has changed."""
        for param in begun:
            policy.optimizer.state.pop(param, None)

    def _refuse(self, policy: Any, reason: str) -> None:
        self.refused = reason
        self._forms.clear()
        self._warn(policy, f"{reason} The gradient steps are not")

    def _warn(self, policy: Any, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f'learn.compile = "on" of {type(policy).__name__}: {reason} compiled.', stacklevel=6)

    def state_dict(self) -> dict[str, Any]:
        """The forms that the run compiles."""
        return {"forms": [*self._known]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._known = [str(digest) for digest in state["forms"]]
        self._forms.clear()


class Outputs:
    """The outputs of a compiled step.

    Args:
        form: the form of the step.
        found: the outputs of its package.
    """

    def __init__(self, form: Form, found: list[Tensor]) -> None:
        self.loss, *values = found
        self.stats: dict[str, Any] = dict(zip(form.step.outputs, values))
        """The statistics, without those that are no tensors."""
        self.are_finite: Tensor | None = self.stats.pop(ALL_FINITE, None)
        """Whether all gradients are finite, if that was asked for and there is no gradient norm."""
        self.stats.update(form.step.constants)


def _remade(known: list[str]) -> CompiledSteps:
    made = CompiledSteps()
    made.load_state_dict({"forms": known})
    return made
