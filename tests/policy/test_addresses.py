"""Where the names stand that a policy is written with."""

from ding_lite import hooks, policy


def test_every_name_of_the_older_address_is_there():
    assert [name for name in hooks.__all__ if not hasattr(hooks, name)] == []
    assert set(policy.__all__) >= {"Policy", "TargetNetwork", "ColumnError", "StateError", "compute_advantages", "RunConfig"}
    assert all(getattr(hooks, name) is getattr(policy, name) for name in set(hooks.__all__) & set(policy.__all__))
