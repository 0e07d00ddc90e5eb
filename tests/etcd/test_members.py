"""What a store says and does when etcd is old, gone, foreign, closed to its user, or encrypted: against real members."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the extra etcd is not installed")

from coordinator.config import Settings, load_settings
from coordinator.embedded import metadata_access
from coordinator.metadata.authority import Put
from coordinator.metadata.etcd import endpoints
from coordinator.metadata.etcd.calls import GrpcEtcd
from coordinator.metadata.etcd.rpc import Access, EtcdRefusedError, EtcdUnavailableError, Pace
from coordinator.metadata.etcd.store import EtcdStore
from coordinator.metadata.open import open_etcd
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.metadata.urls import parse
from tests.etcd.conftest import running
from tests.etcd.members import Members, free_ports
from tests.etcd.stores import LONG_MS, PATIENT, fatal, new_name, opened


async def test_a_store_is_opened_by_its_url(three_members: Members) -> None:
    name = new_name()
    members = ",".join(f"{host}:{port}" for host, port in three_members.addresses)
    first = await open_etcd(parse(f"etcd://{members}/{name}"), lambda: "drawn first", fatal, timeout_ms=LONG_MS)
    second = await open_etcd(parse(f"etcd://{members}/{name}"), lambda: "drawn second", fatal, timeout_ms=LONG_MS)
    assert (first.cluster_id, second.cluster_id) == ("drawn first", "drawn first")
    await first.close()
    await second.close()


async def test_clusters_of_two_names_share_an_etcd_and_no_key(one_member: Members) -> None:
    one, other = await opened(one_member.addresses, new_name()), await opened(one_member.addresses, new_name())
    await one.transaction([], [Put("a", 1)], timeout_ms=LONG_MS)
    assert await other.catch_up(timeout_ms=LONG_MS) >= one.revision
    assert other.range("") == []
    await one.close()
    await other.close()


async def test_members_that_are_all_gone_are_named_within_the_time_given() -> None:
    ports = free_ports(3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    members = ",".join(f"127.0.0.1:{port}" for port in ports)
    with pytest.raises(MetadataUnavailableError) as caught:
        await open_etcd(parse(f"etcd://{members}/x"), lambda: "id", fatal, timeout_ms=1_000)
    assert loop.time() - began < 30
    assert caught.value.outcome == "none"
    for port in ports:
        assert f"127.0.0.1:{port}: " in str(caught.value)


async def test_a_transaction_that_nobody_could_be_sent_has_no_outcome() -> None:
    etcd = GrpcEtcd([("127.0.0.1", free_ports(1)[0])], Access(), Pace())
    with pytest.raises(EtcdUnavailableError) as caught:
        await etcd.txn([], [Put("k", b"v")], timeout_ms=500)
    assert caught.value.outcome == "none"
    await etcd.close()


async def test_old_versions_are_refused_unless_they_are_allowed(
    one_member: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "OLDEST", (99, 0, 0))
    allowed, _ = load_settings(["--allow-old-etcd", "yes"], {})
    store = await opened_within(one_member, metadata_access(allowed), LONG_MS)
    await store.close()
    with pytest.raises(MetadataUnavailableError, match=r"use 99\.0\.0 or newer, or allow it with allow_old_etcd=yes"):
        await opened_within(one_member, metadata_access(Settings()), 6_000)


async def opened_within(members: Members, access: Access, timeout_ms: int) -> EtcdStore:
    etcd = GrpcEtcd(members.addresses, access, PATIENT)
    try:
        return await EtcdStore.open(etcd, new_name(), lambda: "id", fatal, timeout_ms=timeout_ms)
    except MetadataUnavailableError:
        await etcd.close()
        raise


async def test_a_member_of_another_etcd_is_passed_over(one_member: Members, three_members: Members) -> None:
    etcd = GrpcEtcd([*three_members.addresses, *one_member.addresses], Access(), PATIENT)
    key = f"/{new_name()}"
    await etcd.txn([], [Put(key, b"v")], timeout_ms=LONG_MS)
    foreign = etcd._members._members[-1]
    with pytest.raises(EtcdUnavailableError, match="belongs to another etcd cluster"):
        await etcd._members.greet(foreign, 10)
    assert not foreign.is_greeted()
    await etcd.close()


def test_a_prefix_ends_where_the_next_begins() -> None:
    from coordinator.metadata.etcd.rpc import end_of_prefix

    assert [end_of_prefix(prefix) for prefix in ("/a/", "é", "\ud7ff")] == ["/a0", "ê", "\ue000"]


@pytest.fixture
def guarded(etcd_binary: None, tmp_path: Path) -> Iterator[Members]:
    """A member that lets users in only, whose tokens last two seconds."""
    for members in running(Members(tmp_path, 1, "--unsafe-no-fsync", "--auth-token-ttl", "2")):
        ask = members.members[0].ask
        for path, body in (
            ("user/add", {"name": "root", "password": "r"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "cohort", "password": "secret"}),
            ("role/add", {"name": "cohort"}),
            ("role/grant", {"name": "cohort", "perm": _below("/cohort/in")}),
            ("user/grant", {"user": "cohort", "role": "cohort"}),
            ("enable", {}),
        ):
            ask("POST", f"/v3/auth/{path}", body)
        yield members


def _below(prefix: str) -> dict[str, Any]:
    first, end = prefix.encode(), prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])
    return {
        "permType": "READWRITE",
        "key": base64.b64encode(first).decode(),
        "range_end": base64.b64encode(end).decode(),
    }


async def test_users_are_logged_in_and_again_when_their_token_is_over(guarded: Members) -> None:
    async def store_of(user: str, password: str, name: str) -> EtcdStore:
        return await opened(guarded.addresses, name, access=Access(user=user, password=password))

    with pytest.raises(MetadataUnavailableError, match=r"refuses the user cohort: .*invalid user ID or password"):
        await store_of("cohort", "wrong", "in")
    with pytest.raises(MetadataUnavailableError, match="user name is empty"):
        await store_of("", "", "in")
    with pytest.raises(MetadataUnavailableError, match="permission denied"):
        await store_of("cohort", "secret", "elsewhere")
    store = await store_of("cohort", "secret", "in")
    lease = await store.grant(60_000)
    for number in range(2):  # a simple token lives on while it is used
        await store.transaction([], [Put("a", number, lease.id)], timeout_ms=LONG_MS)
        assert await lease.renew()
        await asyncio.sleep(3)
    assert await store.transaction([], [Put("a", "last")], timeout_ms=LONG_MS) is not None
    found = store.get("a")
    assert found is not None
    assert (found.value, found.version) == ("last", 3)
    await store.close()


def certificates(directory: Path) -> None:
    """An authority, and of it one for members and one for nodes."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, to make certificates")
    made: tuple[tuple[str, ...], ...] = (
        (
            "req",
            "-x509",
            "-nodes",
            *_KEY,
            "-keyout",
            "ca.key",
            "-out",
            "ca.pem",
            "-subj",
            "/CN=authority",
            "-days",
            "9",
        ),
        *(
            ("req", "-nodes", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            for name in ("member", "node")
        ),
        ("x509", "-req", "-in", "member.csr", *_SIGN, "-out", "member.pem", "-extfile", "names"),
        ("x509", "-req", "-in", "node.csr", *_SIGN, "-out", "node.pem"),
    )
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n", encoding="utf-8")
    for arguments in made:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=60)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
_SIGN = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "9")


async def test_connections_are_encrypted_and_strangers_are_not_believed(etcd_binary: None, tmp_path: Path) -> None:
    certificates(tmp_path)
    files = {name: str(tmp_path / name) for name in ("ca.pem", "member.pem", "member.key")}
    members = Members(
        *(tmp_path, 1, "--unsafe-no-fsync", "--client-cert-auth", "--trusted-ca-file", files["ca.pem"]),
        *("--cert-file", files["member.pem"], "--key-file", files["member.key"]),
    )
    member = members.members[0]
    member.scheme = "https"
    ca, certificate, key = ((tmp_path / name).read_bytes() for name in ("ca.pem", "node.pem", "node.key"))
    url = f"etcds://127.0.0.1:{member.port}/tls"
    try:
        members.start_one(member)
        known = Access(ca=ca, certificate=certificate, key=key)
        store = await open_etcd(parse(url), lambda: "id", fatal, access=known, timeout_ms=LONG_MS)
        assert await store.transaction([], [Put("a", 1)], timeout_ms=LONG_MS) is not None
        await store.close()
        for stranger in (Access(ca=ca), Access(certificate=certificate, key=key)):
            with pytest.raises(MetadataUnavailableError, match=f"127.0.0.1:{member.port}: "):
                await open_etcd(parse(url), lambda: "id", fatal, access=stranger, timeout_ms=2_000)
    finally:
        members.close()


async def test_what_etcd_refuses_is_said_and_has_no_outcome(one_member: Members) -> None:
    store = await opened(one_member.addresses, new_name())
    with pytest.raises(MetadataUnavailableError, match="request is too large") as caught:
        await store.transaction([], [Put("a", "x" * 2_000_000)], timeout_ms=LONG_MS)
    assert caught.value.outcome == "none"
    etcd = GrpcEtcd(one_member.addresses, Access(), PATIENT)
    with pytest.raises(EtcdRefusedError, match="key is not provided"):
        await etcd.txn([], [Put("", b"v")], timeout_ms=LONG_MS)
    await etcd.close()
    await store.close()


def test_no_two_tests_are_given_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may listen on a port yet, or at the moment: it is another's all the same."""
    (mine,) = free_ports(1)
    other = (mine + 1) if mine < 31_999 else mine - 1
    draws = iter([mine, mine, other])
    monkeypatch.setattr("random.Random.randrange", lambda self, first, end: next(draws))
    said = f"from tests.etcd.members import _reserved; print(*(_reserved(port) for port in ({mine}, {other})))"
    elsewhere = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, timeout=60, check=True)
    assert elsewhere.stdout.split()[0] == "False"
    if elsewhere.stdout.split()[1] == "True":  # and it is free again, as that process has ended
        assert free_ports(1) == [other]
