"""The compiler, a program: `python -m ding_lite.compiling.compiler IN OUT PID` turns a traced gradient step into a package."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import torch
from torch._inductor import config

from ding_lite.compiling.programs import Program, graph_of
from ding_lite.processes.pickles import loads

_POLL_S = 0.5


class _Step(torch.nn.Module):
    """The module that torch exports."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Run the graph."""
        return self.graph(*inputs)  # type: ignore[no-any-return]


def compile_program(program: Program, path: Path) -> None:
    """Compile a program ahead of time.

    Args:
        program: the program.
        path: the file to write. Torch writes its own files of the program beside it.
    """
    inputs = tuple(meta.empty().zero_() for meta in program.metas)
    with torch.no_grad(), config.patch({"aot_inductor.output_path": str(path.parent / "program")}):
        exported = torch.export.export(_Step(graph_of(program)), inputs)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


def end_with(parent: int, folder: Path) -> None:
    """Wait for the end of the parent, then delete the folder and end this process, with the C++ compiler.

    Args:
        parent: number of the process that has started this one, which leads a process group of its own.
        folder: holds all files of the compilation.
    """
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main(source: str, result: str, parent: str) -> None:
    """Read a program from a file, and write the package to another one in the same folder."""
    threading.Thread(target=end_with, args=(int(parent), Path(source).parent), daemon=True).start()
    warnings.simplefilter("ignore")
    tempfile.gettempdir()  # stays the folder where torch keeps compiled headers
    os.environ["TMPDIR"] = str(Path(source).parent)  # of the C++ compiler
    program, threads, precision = loads(Path(source).read_bytes())
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    compile_program(program, Path(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
