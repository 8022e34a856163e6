"""Labels and roles: what a script asks to find out what this process is for."""

import pytest

from ding_lite.engine import Role, Task


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [
        ("local", True),
        ("node.*", True),
        (["gpu", "node.?"], True),
        ("gpu.*", True),
        ("cpu", False),
        ([], False),
        ("node", False),
    ],
)
def test_labels_are_matched_by_pattern(patterns, matches):
    with Task().start(labels=["gpu.0"]) as loop:
        assert loop.match_labels(patterns) is matches


def test_one_label_may_be_given_as_a_string():
    with Task().start(labels="trainer") as loop:
        assert loop.match_labels("trainer")
        assert not loop.match_labels("t")


def test_a_process_without_roles_has_them_all():
    with Task().start() as loop:
        assert loop.roles == set()
        assert all(loop.has_role(role) for role in Role)


def test_a_process_with_roles_has_only_those():
    with Task().start() as loop:
        loop.add_role(loop.role.COLLECTOR)
        loop.add_role("evaluator")

        assert loop.roles == {Role.COLLECTOR, Role.EVALUATOR}
        assert [role for role in Role if loop.has_role(role)] == [Role.COLLECTOR, Role.EVALUATOR]
        assert loop.has_role("collector")
        assert not loop.has_role("learner")


def test_roles_and_labels_end_with_the_task():
    loop = Task()
    with loop.start(labels=["gpu"]):
        loop.add_role(Role.LEARNER)
    with loop.start():
        assert loop.has_role(Role.COLLECTOR)
        assert not loop.match_labels("gpu")


def test_a_factory_leaves_itself_out_where_it_has_no_role():
    ran = []

    def collector(loop):
        return (lambda ctx: ran.append("collector")) if loop.has_role(Role.COLLECTOR) else loop.void()

    with Task().start() as loop:
        loop.add_role(Role.LEARNER)
        loop.use(collector(loop)).use(lambda ctx: ran.append("learner"))
        loop.run(max_step=1)

    assert ran == ["learner"]
