"""TensorBoard: rows of metrics as an event file."""

from __future__ import annotations

import io
import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.basics import require_extra, writing
from ding_lite.sinks.metric_files import append_whole
from ding_lite.sinks.sink_groups import axis_of, images_of, plain_row


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
        append_whole(self._path, _record(step=int(values.get(axis_of(values, self._step)) or 0), summary=summary))

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


def _record(**parts: Any) -> bytes:
    """An event in the format of TFRecord files: the length of the data and the data, each followed by its checksum."""
    from tensorboard.compat.proto.event_pb2 import Event

    data: bytes = Event(wall_time=time.time(), **parts).SerializeToString()
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """The masked CRC-32C of TFRecord files."""
    try:
        import google_crc32c
    except ImportError:  # the same in Python, which takes longer than all the rest of a row
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

        return struct.pack("<I", masked_crc32c(data))
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _png(image: Any) -> Any:
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    height, width, _ = image.shape
    return Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=file.getvalue())
