"""Compiled steps of a policy: chooses the form of each gradient step, makes what is missing, tells what cannot be compiled."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from ding_lite.compiling.forms import RECHECKED, Form, UnfitError
from ding_lite.compiling.functional_steps import ALL_FINITE, FunctionalStep, trace_step
from ding_lite.compiling.packages import Compilation, Package, load_package
from ding_lite.compiling.tracing import NotCompiledError
from ding_lite.compiling.verification import Saved, reference_step, require_equal
from ding_lite.data import Tree, nested
from ding_lite.policy_check import LossError

MOST_FORMS = 6
"""Programs of the gradient step of a policy that are compiled."""

AUTO_STEPS = 10_000
"""With "auto", the gradient steps after the first one of a form that are not compiled."""

_MOST_TRACES = 100  # of one object

PlainStep = Callable[[], Mapping[str, Any]]
"""Takes a step without compilation, without hooks before and after it, and without counting it. Returns its statistics."""

_logger = logging.getLogger(__name__)


class Outputs:
    """The outputs of a compiled step.

    Args:
        form: the form of the step.
        found: the outputs of its package.
    """

    def __init__(self, form: Form, found: list[Tensor]) -> None:
        self.loss, *values = found
        self.stats: dict[str, Any] = dict(zip(form.step.outputs, values))
        """The statistics."""
        self.are_finite: Tensor | None = self.stats.pop(ALL_FINITE, None)
        """Whether all gradients are finite, if that was asked for and there is no gradient norm."""
        self.stats.update(form.step.constants)


class CompiledSteps:
    """Takes gradient steps of one policy as compiled steps, where that is possible.

    Which forms of the step a run compiles, and from which gradient step on, is part of the policy's state, so that a resumed
    run compiles the same ones.

    Args:
        is_auto: whether compilation runs beside the first steps of a form; otherwise the first one waits for it.
    """

    varying: ClassVar[tuple[str, ...]] = ("forms",)
    is_learned: ClassVar[bool] = False

    def __init__(self, is_auto: bool = False) -> None:
        self.taken = 0
        """Compiled steps taken by this object."""
        self.refused = ""
        """Why no step is compiled; empty if steps are compiled."""
        self._is_auto = is_auto
        self._forms: list[Form] = []
        self._known: dict[str, int] = {}  # by the digest of a form, the value of `train_iter` from which it is compiled
        self._traces = 0
        self._verified: dict[str, Package] = {}
        self._compilations: dict[str, Compilation] = {}
        self._warned: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledSteps:
        return _remade(self._is_auto, self._known)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self._is_auto, self._known)

    def take(self, policy: Any, batch: Tree, checks_gradients: bool, plain: PlainStep) -> Outputs | None:
        """Take a gradient step; None if it is not compiled, and nothing has changed.

        The step does not change weights, moments or buffers if its loss, or the gradient norm among its statistics, is not
        finite.

        Args:
            policy: the policy.
            batch: the batch of the loss.
            checks_gradients: whether the step also changes nothing if a gradient is not finite.
            plain: takes the step without compilation, to compare with.
        """
        if self.refused:
            return None
        columns = nested(batch)
        try:
            for form in self._forms:
                if form.misfit(policy, columns) is None and not form.is_stale(policy):
                    break
            else:
                found = self._new_form(policy, batch, columns, checks_gradients)
                if found is None:
                    return None
                form = found
            return self._taken(form, policy, columns, plain)
        except (NotCompiledError, UnfitError) as error:
            self.refuse(policy, f"{error}." if isinstance(error, UnfitError) else str(error))
        except LossError:
            pass  # the step without compilation raises it
        return None

    def refuse(self, policy: Any, reason: str) -> None:
        """Compile no more steps, and warn of it.

        Args:
            policy: the policy.
            reason: a sentence.
        """
        self.refused = reason
        self._forms.clear()
        self._compilations.clear()
        self._warn(policy, f"{reason} Its gradient steps are not compiled.")

    def _new_form(self, policy: Any, batch: Tree, columns: Mapping[str, Any], checks_gradients: bool) -> Form | None:
        """Trace a step that has none of the forms; None if there are too many."""
        self._forms = [form for form in self._forms if not form.is_stale(policy)][1 - 2 * MOST_FORMS :]
        if self._traces >= _MOST_TRACES:
            self._warn(policy, f"it had {_MOST_TRACES} values of what its loss reads. Steps with others are not compiled.")
            return None
        self._traces += 1
        form = Form(_traced(policy, batch, checks_gradients), policy)
        digest = form.digest
        if digest not in self._known and len(self._known) < MOST_FORMS:
            self._known[digest] = policy.train_iter + (AUTO_STEPS if self._is_auto else 0)
        form.begins = self._known.get(digest, math.inf)
        if form.begins == math.inf:
            why = next(filter(None, (other.misfit(policy, columns) for other in self._forms)), "it is another one")
            self._warn(
                policy, f"{MOST_FORMS} forms of its gradient step are compiled, and others are not. In this one, {why}.", True
            )
        form.package = self._verified.get(digest)
        form.is_verified = form.package is not None
        if form.package is None and form.begins < math.inf:
            form.package = load_package(form.step.program)
            if form.package is None and digest not in self._compilations:
                _logger.info("compiling a gradient step of %s, which is done once", type(policy).__name__)
                self._begin(form, policy)
        self._forms.append(form)
        return form

    def _begin(self, form: Form, policy: Any) -> None:
        """Start to compile a form."""
        try:
            self._compilations[form.digest] = Compilation(form.step.program)
        except NotCompiledError as error:
            self._give_up(form, policy, error)

    def _give_up(self, form: Form, policy: Any, error: NotCompiledError) -> None:
        """Do not compile the steps of a form."""
        form.begins = math.inf
        self._warn(policy, f"{error} Such gradient steps are not compiled.")

    def _taken(self, form: Form, policy: Any, columns: Mapping[str, Any], plain: PlainStep) -> Outputs | None:
        """Take a step of a form, if it is time."""
        if policy.train_iter < form.begins:
            return None
        if not form.is_verified:
            try:
                if form.package is None:
                    form.package = self._compilations.pop(form.digest).package()
                return self._verify(form, policy, columns, plain)
            except NotCompiledError as error:
                self._give_up(form, policy, error)
                return None
        if form.is_due():
            return self._verify_again(form, policy, columns, plain)
        outputs = Outputs(form, form.take(policy, columns))
        self.taken += 1
        return outputs

    def _verify_again(self, form: Form, policy: Any, columns: Mapping[str, Any], plain: PlainStep) -> Outputs | None:
        """Take a step of a form that was verified before, and compare it again, because a loss may depend on values that are
        not known to the form. None if two steps in a row differ; then no more steps are compiled.
        """
        before = Saved(form, policy)
        reference = reference_step(form, policy, plain)
        outputs = Outputs(form, form.take(policy, columns))
        try:
            require_equal(form, before, reference, outputs.stats, form.held(policy))
            form.is_doubted = False
        except NotCompiledError as error:
            if form.is_doubted:
                before.restore()
                self.refuse(
                    policy,
                    f"{error} This was not so at first: the loss depends on a value that is not checked, so some of the last "
                    f"{RECHECKED} steps had an outdated value. Make it an attribute of the policy.",
                )
                return None
            form.is_doubted = True  # rounding may do it once, and the step is as good as the other one
        self.taken += 1
        return outputs

    def _verify(self, form: Form, policy: Any, columns: Mapping[str, Any], plain: PlainStep) -> Outputs:
        """Take the first step of a form, and compare it with one that is not compiled.

        Raises:
            NotCompiledError: they differ. Nothing has changed.
            LossError: the loss is not finite. Nothing has changed.
        """
        begun = form.begin(policy)
        before = Saved(form, policy)
        try:
            reference = reference_step(form, policy, plain)
            try:
                outputs = Outputs(form, form.take(policy, columns))
            except RuntimeError as error:
                raise NotCompiledError(f"the compiled step fails: {str(error)[:300]}") from error
            require_equal(form, before, reference, outputs.stats, form.held(policy))
        except (NotCompiledError, LossError):
            before.restore()
            for param in begun:
                policy.optimizer.state.pop(param, None)
            raise
        form.is_verified = True
        assert form.package is not None, "its step was taken"
        self._verified[form.digest] = form.package
        self.taken += 1
        return outputs

    def _warn(self, policy: Any, text: str, is_of_count: bool = False) -> None:
        """Warn, once for each reason, and once of the number of forms."""
        reason = "" if is_of_count else text
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"{type(policy).__name__} with learn.compile: {text}", stacklevel=6)

    def state_dict(self) -> dict[str, Any]:
        """The forms that the run compiles, each with the gradient step from which it does."""
        return {"forms": [[digest, begins] for digest, begins in self._known.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._known = {str(digest): int(begins) for digest, begins in state["forms"]}
        self._forms.clear()


def _traced(policy: Any, batch: Tree, checks_gradients: bool) -> FunctionalStep:
    """`trace_step`, where every error means that the step is not compiled."""
    try:
        return trace_step(policy, batch, checks_gradients)
    except (NotCompiledError, LossError):
        raise
    except Exception as error:
        raise NotCompiledError(f"tracing the step fails: {type(error).__name__}: {str(error)[:300]}.") from error


def _remade(is_auto: bool, known: Mapping[str, int]) -> CompiledSteps:
    made = CompiledSteps(is_auto)
    made.load_state_dict({"forms": known.items()})
    return made
