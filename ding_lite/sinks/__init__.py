"""Sinks: write metrics to files, to the console, and to services.

Internal: its names may change in any version; `ding_lite.metrics` has those for users.
"""

from ding_lite.sinks.consoles import Console, LiveConsole, format_duration, make_console, sparkline
from ding_lite.sinks.end_lines import end_line, result_line
from ding_lite.sinks.metric_files import Csv, JsonLines, json_value, read_row, read_rows, value_of_json
from ding_lite.sinks.run_logs import RunLog
from ding_lite.sinks.sink_groups import Sink, SinkGroup
from ding_lite.sinks.tensorboard_files import TensorBoard
from ding_lite.sinks.weights_and_biases import WeightsAndBiases

__all__ = [
    "Console",
    "Csv",
    "JsonLines",
    "LiveConsole",
    "RunLog",
    "Sink",
    "SinkGroup",
    "TensorBoard",
    "WeightsAndBiases",
    "end_line",
    "format_duration",
    "json_value",
    "make_console",
    "read_row",
    "read_rows",
    "result_line",
    "sparkline",
    "value_of_json",
]
