"""Basics: messages, configurations, checkpoint files and nesting, used by all other packages.

Internal: its names may change in any version; `ding_lite.engine` and `ding_lite.config` have those for users.
"""

from ding_lite.basics.checkpoint_files import (
    CheckpointError,
    arrays,
    load_checkpoint,
    plain,
    save_checkpoint,
)
from ding_lite.basics.config_classes import Config, near_fields, ranged_field, seed_field
from ding_lite.basics.config_classes import bounded as bounded
from ding_lite.basics.derived_states import base_state
from ding_lite.basics.files import (
    UnsavedError,
    WriteError,
    absolute,
    move_aside,
    remove_leftovers,
    require_writable,
    temporary_beside,
    write_atomically,
    writing,
)
from ding_lite.basics.foreign_names import foreign_arguments, foreign_attributes, foreign_names, refuse_foreign_modules
from ding_lite.basics.messages import add_note, did_you_mean, printable, require_extra, warn_caller
from ding_lite.basics.nesting import unflatten
from ding_lite.basics.row_files import NumberedRows
from ding_lite.basics.row_files import RowsInPieces as RowsInPieces
from ding_lite.basics.run_copies import RunCopy
from ding_lite.basics.run_downloads import downloaded_run, restored_run
from ding_lite.basics.run_files import RunFiles
from ding_lite.basics.run_locks import FolderInUseError, RunLock
from ding_lite.basics.run_records import RunRecord, command_line, json_ready, library_versions
from ding_lite.basics.seed_checks import seed_of
from ding_lite.basics.setting_types import ConfigError, plain_setting
from ding_lite.basics.storages import Storage, StorageError, open_storage, place_in_storage, require_usable
from ding_lite.basics.uris import is_uri, require_no_uri, shown_text, shown_uri, without_place
from ding_lite.basics.user_output import EnduringStream, is_closed, show, tell

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "EnduringStream",
    "FolderInUseError",
    "NumberedRows",
    "RunCopy",
    "RunFiles",
    "RunLock",
    "RunRecord",
    "Storage",
    "StorageError",
    "UnsavedError",
    "WriteError",
    "absolute",
    "add_note",
    "arrays",
    "base_state",
    "command_line",
    "did_you_mean",
    "downloaded_run",
    "foreign_arguments",
    "foreign_attributes",
    "foreign_names",
    "is_closed",
    "is_uri",
    "json_ready",
    "library_versions",
    "load_checkpoint",
    "move_aside",
    "near_fields",
    "open_storage",
    "place_in_storage",
    "plain",
    "plain_setting",
    "printable",
    "ranged_field",
    "refuse_foreign_modules",
    "remove_leftovers",
    "require_extra",
    "require_no_uri",
    "require_usable",
    "require_writable",
    "restored_run",
    "save_checkpoint",
    "seed_field",
    "seed_of",
    "show",
    "shown_text",
    "shown_uri",
    "tell",
    "temporary_beside",
    "unflatten",
    "warn_caller",
    "without_place",
    "write_atomically",
    "writing",
]
