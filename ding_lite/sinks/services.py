"""Services: TensorBoard and Weights & Biases as sinks."""

from __future__ import annotations

import io
import math
import os
import socket
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ding_lite.basics import require_extra, writing
from ding_lite.sinks.metric_files import append_whole
from ding_lite.sinks.sink_groups import images_of, plain_row


class TensorBoard:
    """Writes numbers and images to an event file of TensorBoard, at the step of the row.

    Each row is complete in the file before `write` returns; there is no background thread.

    Args:
        folder: folder of the event file; created with the first row.
        step: column of the step; `train_iter` for rows without it.
        after: continue a run after this step: TensorBoard hides later steps of earlier event files in the folder. None for a
            new run, which hides all of them; infinite to hide none.
    """

    takes_images = True

    def __init__(self, folder: str | PathLike[str], step: str = "env_step", *, after: float | None = None) -> None:
        self.folder, self._step, self._after = Path(folder), step, after
        self._path: Path | None = None

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.folder)!r})"

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one event with the whole row.

        Raises:
            ImportError: tensorboard is not installed.
            OSError: the row cannot be written; the file is unchanged.
        """
        require_extra("tensorboard", "tb", "TensorBoard()")
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = plain_row(row)
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
        summary = Summary(value=[Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()])
        for name, image in images_of(row).items():
            summary.value.add(tag=name, image=_png(image))
        if self._path is None:
            self._path = self._begun()
        append_whole(self._path, _record(step=int(values.get(_axis(values, self._step)) or 0), summary=summary))

    def close(self) -> None:
        """Does nothing, because nothing is open between two rows."""

    def _begun(self) -> Path:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        with writing(self.folder / "events"):
            self.folder.mkdir(parents=True, exist_ok=True)
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        path = self.folder / f"events.out.tfevents.{seconds}.{socket.gethostname()}.{os.getpid()}.{nanoseconds:09}"
        start = b""
        if self._after != math.inf:
            first = 0 if self._after is None else int(self._after) + 1
            start = _record(step=first, session_log=SessionLog(status=SessionLog.START))
        append_whole(path, _record(file_version="brain.Event:2") + start)
        return path


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
            self._run = self._begun(_axis(values, self._step))
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


def _axis(row: Mapping[str, Any], step: str) -> str:
    return step if row.get(step) is not None else "train_iter"


def _record(**parts: Any) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **parts).SerializeToString())
    return record.getvalue()


def _png(image: Any) -> Any:
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    height, width, _ = image.shape
    return Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=file.getvalue())
