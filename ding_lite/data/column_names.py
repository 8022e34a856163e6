"""Column names: those that nothing which a policy, an environment or a user adds may have."""

from __future__ import annotations

LENGTHS = "lengths"
"""The lengths of the episodes, beside the columns in a file of a dataset."""
VALID = "valid"
"""The leaf of a batch that says which of its rows are steps."""
RESERVED = (LENGTHS, VALID, "timestep", "return_to_go")
"""That of the lengths in files, and those of what `OfflineDataset.windows` adds."""
FLAGS = ("terminated", "truncated")
"""The columns that say where an episode ends, of bool."""
POLICY_VERSION = "policy_version"
"""The column that collectors add: the version of the weights that acted; -1 for random actions, and where it is unknown."""
STATE_IN = "state_in_"
"""With a number behind it, the names of the columns that hold an element of the recurrent state before each step."""
