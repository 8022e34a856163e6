"""Compiled steps of a policy: chooses the form of each gradient step, makes what is missing, tells what cannot be compiled."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ding_lite.compiling.cuda_graphs import uses_graphs
from ding_lite.compiling.forms import RECHECKED, Form, UnfitError
from ding_lite.compiling.functional_steps import ALL_FINITE, FunctionalStep, trace_step
from ding_lite.compiling.histories import History
from ding_lite.compiling.packages import Compilation, Package, load_package, require_settings
from ding_lite.compiling.tracing import NotCompiledError
from ding_lite.compiling.verification import Saved, reference_step, require_equal
from ding_lite.data import Tree, nested
from ding_lite.policy_check import NonFiniteError

MAX_FORMS = 6
"""Programs of the gradient step of a policy that are compiled."""

AUTO_STEPS = 10_000
"""With "auto", the gradient steps after the first one of a form that are not compiled."""

_MOST_TRACES = 200  # of one object
_MOST_VALUES = 100  # for which steps of a run are traced

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


class Unchecked(NamedTuple):
    """A step on a GPU that was not checked yet, because each check waits for the GPU. If it was not finite, it has changed
    nothing."""

    number: int
    loss: Tensor
    grad_norm: Tensor | None


class CompiledSteps:
    """Takes gradient steps of one policy as compiled steps, where that is possible.

    Which forms of the step a run compiles, from which gradient step on, and which it cannot compile, is part of the policy's
    state, so that a resumed run compiles the same ones.

    Args:
        is_auto: whether compilation runs beside the first steps of a form; otherwise the first one waits for it.

    Raises:
        ValueError: DING_LITE_CACHE_MB or CXX cannot be read.
    """

    unchecked_entries: ClassVar[tuple[str, ...]] = History.entries
    new_entries: ClassVar[tuple[str, ...]] = History.entries[1:]
    is_learned: ClassVar[bool] = False

    def __init__(self, is_auto: bool = False) -> None:
        require_settings()
        self.taken = 0
        """Compiled steps taken by this object."""
        self.refused = ""
        """Why no step is compiled; empty if steps are compiled."""
        self._history, self._is_restored = History(is_auto), False
        self._forms: list[Form] = []
        self._known, self._traces = self._history.forms, 0
        self._packages: dict[str, Package] = {}
        self._verified: set[str] = set()
        self._compilations: dict[str, Compilation] = {}
        self._unchecked: list[Unchecked] = []
        self._warned: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledSteps:
        return _remade(self._history.is_auto, self.state_dict())

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self._history.is_auto, self.state_dict())

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
            if self._is_restored:
                self._is_restored = False
                self._warn(policy, f"{self.refused} Its gradient steps are not compiled, as in the saved run.")
            return None
        columns = nested(batch)
        try:
            for form in self._forms:
                if form.misfit(policy, columns) is None and not form.is_stale(policy):
                    break
            else:
                form = self._new_form(policy, batch, columns, checks_gradients)
            outputs = self._taken(form, policy, columns, plain)
            if outputs is not None:
                policy.optimizer._opt_called = True  # otherwise torch's learning rate schedulers warn
                if uses_graphs(policy.device):
                    self._unchecked.append(Unchecked(policy.train_iter, outputs.loss, outputs.stats.get("grad_norm")))
            return outputs
        except (NotCompiledError, UnfitError) as error:
            reason = f"{error}." if isinstance(error, UnfitError) else str(error)
            self.refuse(policy, reason, is_lasting=policy.device.type == "cpu")
        except NonFiniteError:
            pass  # the step without compilation raises it
        return None

    def refuse(self, policy: Any, reason: str, is_lasting: bool = True) -> None:
        """Compile no more steps, and warn of it.

        Args:
            policy: the policy.
            reason: a sentence.
            is_lasting: whether this also holds in a resumed run.
        """
        self.refused = reason
        self._history.refused = reason if is_lasting else ""
        self._forms.clear()
        self._compilations.clear()
        self._warn(policy, f"{reason} Its gradient steps are not compiled.")

    def first_nonfinite(self) -> tuple[int, str, float] | None:
        """The first step on a GPU since the last call whose loss or gradient norm was not finite: its number, what was not
        finite, and its value. None if there is none. Waits for the GPU.
        """
        unchecked, self._unchecked = self._unchecked, []
        if not unchecked:
            return None
        found = [[it.loss, it.loss if it.grad_norm is None else it.grad_norm] for it in unchecked]
        values = torch.stack([torch.stack([value.detach().double() for value in pair]) for pair in found]).tolist()
        for step, pair in zip(unchecked, values):
            for what, value in zip(("loss", "gradient"), pair):
                if not math.isfinite(value):
                    return step.number, what, value
        return None

    def _new_form(self, policy: Any, batch: Tree, columns: Mapping[str, Any], checks_gradients: bool) -> Form:
        """Trace a step that has none of the forms.

        Raises:
            NotCompiledError: it cannot be compiled, or too many were traced.
            NonFiniteError: the loss raises it.
        """
        history, before = self._history, len(self._forms)
        self._traces += 1
        if self._traces > _MOST_TRACES:
            why = next(filter(None, (other.misfit(policy, columns) for other in reversed(self._forms))), "it is another one")
            raise NotCompiledError(f"its step was traced {_MOST_TRACES} times, because what its loss reads changes: {why}.")
        self._forms = [form for form in self._forms if not form.is_stale(policy)]
        form = Form(_traced(policy, batch, checks_gradients), policy)
        digest, is_on_gpu = form.digest, uses_graphs(policy.device)
        why = next(filter(None, (other.misfit(policy, columns) for other in reversed(self._forms))), "it is another one")
        if history.add_values(form, is_replaced=len(self._forms) < before) > _MOST_VALUES:
            raise NotCompiledError(f"it had {_MOST_VALUES} values of what its loss reads. In this step, {why}.")
        if digest not in self._known and len(self._known) < MAX_FORMS:
            self._known[digest] = policy.train_iter + AUTO_STEPS if history.is_auto and not is_on_gpu else 0
        form.begins = history.begins(digest)
        if digest in history.failed:
            self._warn(policy, f"{history.failed[digest]} Such gradient steps are not compiled.")
        elif form.begins == math.inf:
            self._warn(
                policy, f"{MAX_FORMS} forms of its gradient step are compiled, and others are not. In this one, {why}.", True
            )
        if is_on_gpu and form.begins < math.inf:
            form.record()
        else:
            form.package, form.is_verified = self._packages.get(digest), digest in self._verified
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
        except NotCompiledError as error:  # a resumed run tries again: there may be a compiler then
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
                form.package = form.package or self._package(form)
                form.is_verified = form.digest in self._verified
                if not form.is_verified:
                    return self._verify(form, policy, columns, plain)
            except NotCompiledError as error:
                self._history.failed[form.digest] = str(error)
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

    def _package(self, form: Form) -> Package:
        """The package of a form. Waits until it is compiled.

        Raises:
            NotCompiledError: compilation fails.
        """
        digest = form.digest
        if digest in self._history.failed:
            raise NotCompiledError(self._history.failed[digest])
        if digest not in self._packages:
            # There is none if Ctrl-C has ended it, and the run goes on.
            compilation = self._compilations.pop(digest, None) or Compilation(form.step.program)
            self._packages[digest] = compilation.package()
        return self._packages[digest]

    def _verify(self, form: Form, policy: Any, columns: Mapping[str, Any], plain: PlainStep) -> Outputs:
        """Take the first step of a form, and compare it with one that is not compiled.

        Raises:
            NotCompiledError: they differ. Nothing has changed.
            NonFiniteError: the loss is not finite. Nothing has changed.
        """
        begun = form.begin(policy)
        before = Saved(form, policy)
        try:
            reference = reference_step(form, policy, plain)
            outputs = Outputs(form, form.take(policy, columns))
            require_equal(form, before, reference, outputs.stats, form.held(policy))
        except BaseException as error:
            before.restore()
            for param in begun:
                policy.optimizer.state.pop(param, None)
            if isinstance(error, (NotCompiledError, UnfitError, NonFiniteError)) or not isinstance(error, Exception):
                raise
            raise NotCompiledError(f"the compiled step fails: {type(error).__name__}: {str(error)[:300]}.") from error
        form.is_verified = True
        if isinstance(form.package, Package):
            self._packages[form.digest] = form.package
            self._verified.add(form.digest)
        self.taken += 1
        return outputs

    def _warn(self, policy: Any, text: str, is_of_count: bool = False) -> None:
        """Warn, once for each reason, and once of the number of forms."""
        reason = "" if is_of_count else text
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"{type(policy).__name__} with learn.compile: {text}", stacklevel=6)

    def state_dict(self) -> dict[str, Any]:
        """Which forms the run compiles, each with the gradient step from which it does, and which it cannot compile."""
        return self._history.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Compiled steps are compared with plain ones again, as in a new process."""
        self._history.load_state_dict(state)
        self.refused = self._history.refused
        self._is_restored = bool(self.refused)
        self._forms.clear()
        self._verified.clear()


def _traced(policy: Any, batch: Tree, checks_gradients: bool) -> FunctionalStep:
    """`trace_step`, where every error means that the step is not compiled."""
    try:
        return trace_step(policy, batch, checks_gradients)
    except (NotCompiledError, NonFiniteError):
        raise
    except Exception as error:
        raise NotCompiledError(f"tracing the step fails: {type(error).__name__}: {str(error)[:300]}.") from error


def _remade(is_auto: bool, state: Mapping[str, Any]) -> CompiledSteps:
    made = CompiledSteps(is_auto)
    made.load_state_dict(state)
    return made
