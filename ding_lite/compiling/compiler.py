"""The compiler: a program that turns a traced gradient step into a package, `python -m ding_lite.compiling.compiler IN OUT`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

from ding_lite.compiling.programs import Program, graph_of
from ding_lite.processes.pickles import loads


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
        path: the file to write.
    """
    inputs = tuple(meta.empty().zero_() for meta in program.metas)
    with torch.no_grad():
        exported = torch.export.export(_Step(graph_of(program)), inputs)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


def main(source: str, result: str) -> None:
    """Read a program from a file, and write the package to another one."""
    warnings.simplefilter("ignore")
    program, threads, precision = loads(Path(source).read_bytes())
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    compile_program(program, Path(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
