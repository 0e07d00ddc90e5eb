"""One etcd of three members and one of a single member, for all tests of a process; left out by name where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.etcd import build
from tests.etcd.members import Members

_QUICK = "--unsafe-no-fsync"
"""What a process has written outlives its SIGKILL, and no test cuts the machine's power."""


@pytest.fixture(scope="session")
def etcd_binary() -> None:
    """Leaves a test out that needs etcd, with the reason, where there is none."""
    pytest.importorskip("grpc", reason="the extra etcd is not installed")
    try:
        build.find()
    except build.EtcdMissingError as error:
        pytest.skip(f"needs etcd: {error}")


def running(members: Members) -> Iterator[Members]:
    """Starts and ends them."""
    try:
        members.start()
        yield members
    finally:
        members.close()


@pytest.fixture(scope="session")
def one_member(etcd_binary: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """A cluster of one."""
    yield from running(Members(tmp_path_factory.mktemp("etcd1"), 1, _QUICK))


@pytest.fixture(scope="session")
def three_members(etcd_binary: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """A cluster of three; a test that hurts a member heals it."""
    yield from running(Members(tmp_path_factory.mktemp("etcd3"), 3, _QUICK))
