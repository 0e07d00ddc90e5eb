"""A client that dies between the two steps of its join (KIP-394) holds up no other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from client import Admin, Consumer
from client.transport.connection import Connection
from coordinator import Coordinator
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupProtocol, JoinGroupRequest, JoinGroupResponse
from protocol.subscription import Subscription, encode_subscription
from tests.integration.consuming import QUICK, create, until


async def ask_for_id(address: str) -> tuple[Connection, str]:
    host, _, port = address.rpartition(":")
    connection = await Connection.open(host, int(port), client_id="brief", timeout_s=30)
    blob = encode_subscription(Subscription(("t",)))
    request = JoinGroupRequest(
        "g", 600_000, 600_000, "", None, "consumer",
        (JoinGroupProtocol("range", blob), JoinGroupProtocol("cooperative-sticky", blob)),
    )  # fmt: skip
    answer = await connection.request(request, JoinGroupResponse, timeout_s=30)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return connection, answer.member_id


async def test_a_rebalance_does_not_wait_for_a_client_whose_connection_is_gone() -> None:
    async with Coordinator() as c, AsyncExitStack() as stack, Admin(c.address) as admin:
        await create(c.address, t=2)

        async def start() -> Consumer:
            consumer = Consumer("t", bootstrap_servers=c.address, group_id="g", **QUICK)
            return await stack.enter_async_context(consumer)

        waits = "waiting for 1 new member to join with the id given"
        first = await start()
        await until(lambda: first.state == "stable")
        early, _ = await ask_for_id(c.address)
        early.close()  # before the rebalance: it never waits for this one
        late, _ = await ask_for_id(c.address)
        second = await start()
        await until(lambda: first.state == "rebalancing")
        async with asyncio.timeout(30):
            while waits not in (await admin.describe_groups("g"))["g"].last_rebalance_reason:
                await asyncio.sleep(0.02)
        late.close()
        await until(lambda: first.state == second.state == "stable" and len(second.assignment()) == 1)
