"""Where the names stand that a policy is written with."""

from ding_lite import hooks, policy


def test_every_name_of_the_older_address_is_there():
    assert [name for name in hooks.__all__ if not hasattr(hooks, name)] == []
    assert set(policy.__all__) >= {"Policy", "TargetNetwork", "ColumnError", "StateError", "compute_advantages", "RunConfig"}
    assert all(getattr(hooks, name) is getattr(policy, name) for name in set(hooks.__all__) & set(policy.__all__))


def test_the_modes_that_act_keep_the_older_names_of_what_was_renamed():
    older = {"adopt": "load_snapshot", "hold": "pin", "let_go": "unpin"}
    older |= {"distinguish": "reseed_for", "twin": "worker_copy", "act_elsewhere": "bind_remote"}
    assert all(getattr(policy.ActMode, old) is getattr(policy.ActMode, new) for old, new in older.items())
    assert hooks.BoundedActing is policy.BoxActing
    assert hooks.restarts is policy.episode_starts
