"""Weights & Biases: rows of metrics as one of its runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ding_lite.basics import require_extra, writing
from ding_lite.sinks.sink_groups import axis_of, images_of, plain_row


class WeightsAndBiases:
    """Writes rows as a run of Weights & Biases. By default it is offline: `wandb sync` uploads it from `folder/wandb`.

    It never asks for an API key; `mode="online"` needs one, from `wandb login` or in WANDB_API_KEY. Only the rows and the
    configuration are logged: no console output, no code, no system metrics.

    Args:
        folder: parent of the folder `wandb`, which is created with the first row.
        project: name of the project.
        name: name of the run; None for a random name.
        config: configuration of the run.
        mode: "offline" or "online".
        step: column for the x-axis of curves; `train_iter` if the first row does not have it.

    Raises:
        ValueError: the mode is unknown.
    """

    takes_images = True

    def __init__(
        self,
        folder: str | PathLike[str],
        project: str = "ding_lite",
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        mode: Literal["offline", "online"] = "offline",
        step: str = "env_step",
    ) -> None:
        if mode not in ("offline", "online"):
            raise ValueError(f"WeightsAndBiases(mode={mode!r}): unknown mode, use 'offline' or 'online', or remove the sink.")
        self.folder, self._project, self._name, self._config = Path(folder), project, name, dict(config or {})
        self._mode, self._step = mode, step
        self._run: Any = None

    def __repr__(self) -> str:
        return f"WeightsAndBiases({str(self.folder)!r})"

    def write(self, row: Mapping[str, Any]) -> None:
        """Log the row.

        Raises:
            ImportError: wandb is not installed.
            OSError: the folder cannot be written to.
            Exception: an error of wandb, for example if there is no API key or no answer within 20 seconds.
        """
        values = {name: value for name, value in plain_row(row).items() if value is not None}
        if self._run is None:
            self._run = self._begun(axis_of(values, self._step))
        images = images_of(row)
        if images:
            from wandb import Image

            values.update({name: Image(image) for name, image in images.items()})
        self._run.log(values)

    def close(self) -> None:
        """End the run, and the process that wandb started for it. A later `write` begins a new run."""
        run, self._run = self._run, None
        if run is None:
            return
        import wandb
        from wandb.sdk import wandb_setup

        run.finish()
        if wandb_setup.singleton().most_recent_active_run is None:  # otherwise this would end runs of other code
            try:
                wandb.teardown()
            except SystemExit as error:
                raise RuntimeError(f"wandb's process ended with code {error.code}") from error

    def _begun(self, axis: str) -> Any:
        require_extra("wandb", "wandb", "WeightsAndBiases()")
        import wandb

        with writing(self.folder / "wandb" / "run"):
            (self.folder / "wandb").mkdir(parents=True, exist_ok=True)  # if this failed, wandb would use another folder
        if self._mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # otherwise it sends error reports even when offline
        wandb.setup(wandb.Settings(silent=True))  # otherwise it asks for a key on a terminal
        settings = wandb.Settings(
            silent=True,
            console="off",
            init_timeout=20,
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        run = wandb.init(
            dir=self.folder,
            project=self._project,
            name=self._name,
            config=self._config,
            mode=self._mode,
            reinit="create_new",
            settings=settings,
        )
        run.define_metric("*", step_metric=axis)
        return run
