"""A device's manners towards the application that shares the process, and what it leaves."""

from __future__ import annotations

import daily
import pytest
from gles_child import GLES, run

pytestmark = pytest.mark.driver

EXACT = ("gles20-llvmpipe", "gles30-llvmpipe", "gles31-llvmpipe")
OTHERS = ("gles20-angle", "gles31-zink", "gles31-softpipe")
"""Each other driver once, one of them a day; their other levels take the same paths."""
REST = [c for c in GLES if c not in (*EXACT, "gles20-bare")]


@pytest.mark.parametrize("configuration", daily.in_turn(EXACT))
def test_sharing_a_process(configuration: str) -> None:
    checks = ("objects", "manners", "reset", "memory", "latecomer", "unwaited", "terminated")
    assert run(configuration, *checks) == ""


@pytest.mark.parametrize("tells_more", [True, False])
def test_application_that_used_egl_first(tells_more: bool) -> None:
    run("gles30-llvmpipe", ("earlier_user", {"tells_more": tells_more}))


def test_application_with_a_desktop_context() -> None:
    run("gles30-llvmpipe", ("manners", {"desktop": True}))


@pytest.mark.parametrize(
    "configuration", daily.others_long(REST, [OTHERS[daily.turn(len(OTHERS))]])
)
def test_manners_on_other_drivers(configuration: str) -> None:
    run(configuration, "manners", "latecomer")
