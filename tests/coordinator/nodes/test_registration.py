"""Nodes register, keep their lease, lose it, and never believe in one that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from unittest.mock import patch

import pytest

from coordinator.metadata.authority import Compare, Put
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.metadata.keys import CLUSTER_FORMAT, live_key
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.nodes import registration
from coordinator.nodes.cleanliness import THIS_START
from coordinator.nodes.identity import PATH, decode
from coordinator.nodes.registration import ABANDON_S, FORMAT, Registration, RegistrationRefusedError, draw_node_id
from coordinator.replication.partition import Incarnation
from tests.coordinator.nodes.members import SESSION_MS, Etcd, Member, simulate
from tests.simulation.disk import Inode


def live(member: Member, number: int | None = None) -> dict[str, object]:
    """What the live key says, as this node sees it."""
    known = member.store.get(f"live/{member.number if number is None else number}")
    assert known is not None
    return dict(known.value)


def test_a_node_registers_and_stays() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 3)
        me = await member.start()
        known = member.store.get("live/3")
        assert known is not None
        assert me == member.registration.me == Incarnation(3, known.create_revision)
        assert known.version == 1
        assert known.lease == member.registration.lease_id
        value = live(member)
        assert {name: value[name] for name in ("host", "port", "peer_host", "peer_port", "rack")} == {
            "host": "host3",
            "port": 7003,
            "peer_host": "peer",
            "peer_port": 9,
            "rack": "r",
        }
        assert value["clean_since"] == 0, "since this registration"
        assert member.identity.clean_since == member.identity.broker_epoch == me.broker_epoch
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert member.registration.valid()
        assert member.registration.me == me
        assert member.told == [f"registered {me.broker_epoch}"]
        await member.stop()
        assert not member.registration.valid()
        assert etcd.world.authority.get("/cohort/sim/live/3") is None, "others need not wait for the end of the lease"

    simulate(scenario)


def test_numbers_are_drawn_once_and_those_that_are_taken_are_left_out() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 2)
        await member.start()
        assert [await draw_node_id(member.store) for _ in range(3)] == [1, 3, 4]
        etcd.trouble(answer_lost=0.4)
        drawn: list[int] = []
        while len(drawn) < 20:
            try:
                drawn.append(await draw_node_id(member.store))
            except MetadataUnavailableError:
                continue
        assert drawn == sorted(set(drawn)), "no number twice, whatever answers get lost"
        etcd.trouble()
        await member.stop()

    simulate(scenario)


def test_a_node_that_starts_again_takes_over_from_its_former_incarnation_at_once_and_is_clean() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        first = await member.start()
        controller = member.store.get("live/1")
        assert controller is not None
        put = Put("controller", {"node": 1, "broker_epoch": first.broker_epoch}, controller.lease)
        await member.store.transaction([Compare("controller", "create", 0)], [put])
        member.kill()
        began = asyncio.get_running_loop().time()
        second = await member.start()
        assert asyncio.get_running_loop().time() - began < SESSION_MS / 2000, "without waiting for the end of the lease"
        assert second.broker_epoch > first.broker_epoch
        assert live(member)["clean_since"] == first.broker_epoch, "a process that ends takes nothing with it"
        assert member.store.get("controller") is None, "the controller was the former incarnation"
        known = member.store.get("nodes/1")
        assert known is not None
        assert known.value["start"] == live(member)["start"]
        await member.stop()

    simulate(scenario)


def test_another_data_directory_under_a_live_node_id_is_refused_by_name() -> None:
    async def scenario(etcd: Etcd) -> None:
        member, other = Member(etcd, 1), Member(etcd, 1)
        me = await member.start()
        with pytest.raises(
            RegistrationRefusedError, match=r"node 1 is alive at host1:7001 with another data directory .* two daemons"
        ):
            await other.start()
        await asyncio.sleep(5)
        assert member.registration.valid()
        assert member.registration.me == me, "the one that was there does not notice"
        await member.stop()
        replaced = await other.start()
        assert live(other)["clean_since"] == 0, "a new disk under the number of an old one has nothing of what that had"
        assert other.identity.clean_since == replaced.broker_epoch
        await other.stop()

    simulate(scenario)


def test_the_first_node_writes_the_format_and_a_node_that_reads_only_older_ones_is_refused_by_name() -> None:
    async def scenario(etcd: Etcd) -> None:
        member, late = Member(etcd, 1), Member(etcd, 2)
        await member.start()
        known = member.store.get(CLUSTER_FORMAT)
        assert known is not None
        assert known.value == {"format": FORMAT}
        await late.start()
        again = member.store.get(CLUSTER_FORMAT)
        assert again == known, "it is written once"
        await late.stop()
        await member.store.transaction([], [Put(CLUSTER_FORMAT, {"format": FORMAT + 1})])
        refusal = (
            f"have format {FORMAT + 1}, and this version of Cohort reads formats up to {FORMAT}: start the version"
        )
        with pytest.raises(RegistrationRefusedError, match=refusal):
            await late.start()
        assert late.store.get(live_key(2)) is None
        await member.stop()

    simulate(scenario)


def test_a_copy_of_a_data_directory_is_refused_while_the_other_lives_and_is_not_clean_after_it() -> None:
    async def scenario(etcd: Etcd) -> None:
        member, copy = Member(etcd, 1), Member(etcd, 1)
        await member.start()
        await member.stop()
        for path in member.disk.root.durable:
            copy.disk.root.durable[path] = copy.disk.root.live[path] = member.disk.root.durable[path]
        await member.start()
        with pytest.raises(RegistrationRefusedError, match="alive at host1:7001 with a copy of this data directory"):
            await copy.start()
        await member.stop()
        me = await copy.start()
        assert copy.cleanliness.reason.startswith("the directory is not the one that was registered last")
        assert copy.identity.clean_since == me.broker_epoch
        await copy.stop()

    simulate(scenario)


def test_a_node_that_another_directory_has_stood_in_for_is_not_clean_wherever_its_process_ends() -> None:
    """Once it is registered again the metadata name its start, and nothing tells of the other directory any more."""

    async def scenario(etcd: Etcd) -> None:
        member, other = Member(etcd, 1), Member(etcd, 1)
        await member.start()
        member.pause()
        await asyncio.sleep(2 * SESSION_MS / 1000)
        await other.start()
        other.kill()
        while etcd.world.authority.get("/cohort/sim/live/1") is not None:
            await asyncio.sleep(0.1)

        async def registered(broker_epoch: int, clean_since: int) -> bool:
            await asyncio.Event().wait()
            return True

        with patch.object(member.identity, "registered", registered):
            member.go_on()
            while etcd.world.authority.get("/cohort/sim/live/1") is None:
                await asyncio.sleep(0.1)
            member.kill()
        me = await member.start()
        assert member.cleanliness.clean_since == THIS_START
        assert member.identity.clean_since == me.broker_epoch
        await member.stop()

    simulate(scenario)


def test_the_metadata_of_another_cluster_and_one_that_went_back_in_time_are_refused() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        await member.start()
        with pytest.raises(
            MetadataDamagedError, match=r"belongs to cluster cluster, and the metadata at x is .* another"
        ):
            member.identity.check("another", 1, "x")
        await member.stop()
        restored = Etcd(2)
        restored.world.begin()
        member._etcd = restored
        with pytest.raises(RegistrationRefusedError, match=r"store is at revision .* restored from an old backup"):
            await member.start()
        restored.world.end()

    simulate(scenario)


def test_a_lease_that_ends_is_told_at_once_and_the_node_registers_anew() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        first = await member.start()
        known = etcd.world.authority.get("/cohort/sim/live/1")
        assert known is not None
        etcd.world.authority.revoke(known.lease)
        etcd.world.told()
        told_s = asyncio.get_running_loop().time()
        while len(member.told) == 1:
            assert asyncio.get_running_loop().time() - told_s < 0.1
            await asyncio.sleep(0)
        assert member.told == [f"registered {first.broker_epoch}", "lost"]
        assert not member.registration.valid()
        await asyncio.sleep(1)
        second = member.registration.me
        assert second.broker_epoch > first.broker_epoch
        assert member.registration.valid()
        assert member.told[2:] == [f"registered {second.broker_epoch}"]
        assert live(member)["clean_since"] == first.broker_epoch, "the process has lost nothing"
        await member.stop()

    simulate(scenario)


@pytest.mark.parametrize("by", ["the process is stopped", "the machine is suspended"])
def test_who_sleeps_does_not_believe_in_its_lease_when_it_wakes(by: str) -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        first = await member.start()
        await asyncio.sleep(3)
        member.pause()
        await asyncio.sleep(20 if by == "the process is stopped" else 0.001)
        if by == "the machine is suspended":  # its loop has not heard of the time that went by
            member.asleep_ms += 20_000
            authority = etcd.world.authority
            for lease in [known.lease for known in authority.range("/cohort/sim/live/")]:
                authority.revoke(lease)
        assert not member.registration.valid(), "before anything else runs"
        member.go_on()
        await asyncio.sleep(2)
        assert member.registration.valid()
        assert member.registration.me.broker_epoch > first.broker_epoch
        assert "lost" in member.told
        await member.stop()

    simulate(scenario)


def test_validity_ends_before_the_store_ends_the_lease() -> None:
    for seed in range(40):

        async def scenario(etcd: Etcd, seed: int = seed) -> None:
            member = Member(etcd, 1)
            await member.start()
            await asyncio.sleep(Random(seed).random() * 3)
            member.rpc.cut = True
            while member.registration.valid():
                assert etcd.world.authority.get("/cohort/sim/live/1") is not None
                await asyncio.sleep(0.005)
            began = asyncio.get_running_loop().time()
            while etcd.world.authority.get("/cohort/sim/live/1") is not None:
                await asyncio.sleep(0.005)
            assert asyncio.get_running_loop().time() - began > 0.3
            assert member.told[1:] == ["invalid"]
            member.rpc.cut = False
            await asyncio.sleep(3)
            assert member.told[1:3] == ["invalid", "lost"]
            assert member.registration.valid()
            await member.stop()

        simulate(scenario, seed)


def test_a_store_that_is_gone_for_a_while_costs_no_incarnation_when_the_lease_outlives_it() -> None:
    async def scenario(etcd: Etcd) -> None:
        member, other = Member(etcd, 1), Member(etcd, 2)
        me = await member.start()
        await other.start(serve_without_quorum=True)
        member.rpc.cut = other.rpc.cut = True
        for _ in range(100):  # etcd has no quorum: leases do not end, and have their whole time then
            await asyncio.sleep(0.1)
            etcd.world.authority.restart_leases(etcd.now_ms())
        assert not member.registration.valid()
        assert other.registration.valid(), "it was told to serve on"
        assert member.told[1:] == ["invalid"]
        assert other.told[1:] == []
        member.rpc.cut = other.rpc.cut = False
        await asyncio.sleep(2)
        assert member.registration.valid()
        assert member.registration.me == me
        assert member.told[1:] == ["invalid", "valid"]
        member.rpc.cut = True
        await asyncio.sleep(1.9)
        assert member.told[1:] == ["invalid", "valid", "invalid"], "the next time it is told again"
        member.rpc.cut = False
        await member.stop()
        await other.stop()

    simulate(scenario)


def test_a_node_that_drains_says_so_and_does_not_register_again() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        me = await member.start()
        etcd.trouble(answer_lost=0.5, refused=0.3)
        await member.registration.draining()
        etcd.trouble()
        await member.store.catch_up()
        known = member.store.get("live/1")
        assert known is not None
        assert (known.create_revision, known.version) == (me.broker_epoch, 2)
        assert member.registration.valid(), "it serves until others do"
        etcd.world.authority.revoke(known.lease)
        etcd.world.told()
        await asyncio.sleep(5)
        assert member.store.get("live/1") is None
        await member.registration.draining()
        await member.stop()

    simulate(scenario)


def test_who_ends_for_an_error_tries_briefly_to_give_the_lease_back() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        await member.start()
        loop = asyncio.get_running_loop()
        member.rpc.cut = True
        began = loop.time()
        await member.registration.close(ABANDON_S)
        assert loop.time() - began < ABANDON_S + 0.05
        assert etcd.world.authority.get("/cohort/sim/live/1") is not None
        member.rpc.cut = False
        await member.store.close()

    simulate(scenario)


def test_a_registration_that_the_disk_refuses_to_note_at_first_is_noted_later_and_outlives_the_power() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        first = await member.start()
        member.kill()
        member.disk.fail_writes = (
            4  # the notes of the start and of the registration, and two times that this is tried again
        )
        await member.start()
        assert "node.json" in member.disk.not_replaced
        await asyncio.sleep(1)
        assert "node.json" not in member.disk.not_replaced
        member.process.dead = True
        member.disk.power_cut()
        await member.start()
        assert live(member)["clean_since"] == first.broker_epoch, "it has all that it ever had"
        await member.stop()

    simulate(scenario)


def test_the_note_that_is_tried_again_is_that_of_the_last_registration() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        member.disk.fail_writes = 1_000
        first = await member.start()
        member.pause()
        await asyncio.sleep(20)
        member.go_on()
        await asyncio.sleep(2)
        me = member.registration.me
        assert me.broker_epoch > first.broker_epoch
        member.disk.fail_writes = 0
        await asyncio.sleep(5.5)
        assert "node.json" not in member.disk.not_replaced
        member.kill()
        await member.start()
        assert live(member)["clean_since"] == first.broker_epoch
        await member.stop()

    simulate(scenario)


def test_nothing_is_noted_any_more_by_a_member_that_is_closed() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        member.disk.fail_writes = 1_000
        await member.start()
        await asyncio.sleep(2)
        await member.stop()
        left = member.disk.fail_writes
        await asyncio.sleep(20)
        assert member.disk.fail_writes == left < 1_000 - 2

    simulate(scenario)


def test_a_registration_that_is_over_meanwhile_is_noted_as_soon_as_the_disk_takes_it() -> None:
    """The store is away for long, and power may go too: the node has what it had all the same."""

    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        member.disk.fail_writes = 1_000
        me = await member.start()
        etcd.trouble(refused=1.0)
        for known in etcd.world.authority.range("/cohort/sim/live/"):
            etcd.world.authority.revoke(known.lease)
        etcd.world.told()
        await asyncio.sleep(3)
        assert "lost" in member.told
        member.disk.fail_writes = 0
        await asyncio.sleep(6)
        file = member.disk.root.durable[PATH]
        assert isinstance(file, Inode)
        noted = decode(file.durable)
        assert (noted.broker_epoch, noted.record.clean_since) == (me.broker_epoch, me.broker_epoch)
        etcd.trouble()
        await member.stop()

    simulate(scenario)


def test_a_note_in_doubt_ends_the_node() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        member.disk.fail_writes = 2
        await member.start()
        member.disk.fail_syncs = 1
        await asyncio.sleep(1)
        assert len(member.fatal) == 1
        assert member.fatal[0].startswith("it is unknown what the data directory says of this node: ")
        await member.stop()

    simulate(scenario)


def test_a_store_that_does_not_answer_ends_a_start() -> None:
    async def scenario(etcd: Etcd) -> None:
        member = Member(etcd, 1)
        await member.start()
        await member.stop()
        etcd.trouble(refused=1.0)
        starting = asyncio.ensure_future(member.start(timeout_s=5))
        with pytest.raises(MetadataUnavailableError):
            await starting
        etcd.trouble()

    simulate(scenario)


async def troubled(etcd: Etcd) -> int:
    """Nodes in every trouble that etcd knows. At each moment at most one that believes it is valid has a number's live key,
    and that key is its own. Returns how many registrations there were."""
    random = Random(etcd.world.authority.revision + 1)
    loop = asyncio.get_running_loop()
    members = [Member(etcd, number) for number in (1, 2, 3)]
    for member in members:
        await member.start()
    etcd.trouble(refused=0.05, answer_lost=0.05, late=0.05, lag=0.02, broken=0.01, silent=0.005)
    end = loop.time() + 60
    until = dict.fromkeys((1, 2, 3), 0.0)
    while loop.time() < end:
        await asyncio.sleep(0.02)
        for member in members:
            if member.registration.valid():
                known = etcd.world.authority.get(f"/cohort/sim/live/{member.number}")
                me = member.registration.me
                assert known is not None, f"valid_is_registered: {me}"
                assert known.create_revision == me.broker_epoch, f"valid_is_registered: {me}"
            if random.random() < 0.002 and member.process.held is None:
                member.pause()
                until[member.number] = loop.time() + random.random() * 4
            elif member.process.held is not None and loop.time() >= until[member.number]:
                member.go_on()
            if random.random() < 0.002:
                member.rpc.cut = not member.rpc.cut
    etcd.trouble()
    for member in members:
        member.rpc.cut = False
        if member.process.held is not None:
            member.go_on()
    await asyncio.sleep(20)
    for member in members:
        assert member.fatal == []
        assert member.registration.valid(), "everybody_is_back"
        told = [word for word in member.told if word not in ("invalid", "valid")]
        assert [word.split()[0] for word in told] == ["registered", *["lost", "registered"] * (len(told) // 2)]
        epochs = [int(word.split()[1]) for word in told if word.startswith("registered")]
        assert epochs == sorted(set(epochs)), "broker_epochs_rise"
        assert member.identity.broker_epoch == member.registration.me.broker_epoch
        await member.stop()
    return sum(len(member.told) for member in members)


def test_a_node_that_is_valid_is_registered_whatever_happens() -> None:
    told = 0

    async def scenario(etcd: Etcd) -> None:
        nonlocal told
        told += await troubled(etcd)

    for seed in range(15):
        simulate(scenario, seed)
    assert told > 100


def _counted_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Registration._held

    def late(self: Registration, sent_ms: int) -> None:
        held(self, self._boot_ms())

    monkeypatch.setattr(Registration, "_held", late)
    monkeypatch.setattr(registration, "_MARGIN_MS", 0)  # it hides what is less than itself


def _always_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registration, "valid", lambda self: self._registered)


@pytest.mark.parametrize("without", [_counted_from_the_answer, _always_valid])
def test_without_a_safeguard_it_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, without: Callable[[pytest.MonkeyPatch], None]
) -> None:
    without(monkeypatch)

    async def scenario(etcd: Etcd) -> None:
        await troubled(etcd)

    def search() -> None:
        for seed in range(15):
            simulate(scenario, seed)

    with pytest.raises(AssertionError, match="valid_is_registered"):
        search()
