"""How many Heartbeat requests of stable members a daemon answers a second, next to an echo of the same frames."""

from __future__ import annotations

from collections.abc import AsyncIterator
from statistics import median
from typing import Final

from client.bench.closed_loop import Exchange, Load
from client.bench.figures import Figure, Setting
from client.bench.raw_group import RawMember, form_group
from client.cli.processes import ServerProcess, daemon
from protocol.codec import encode_message
from protocol.errors import ErrorCode
from protocol.framing import encode_request, encode_response
from protocol.messages.groups import HeartbeatRequest, HeartbeatResponse

CONNECTIONS: Final = 50
_CORRELATION_ID: Final = 1


async def run(setting: Setting) -> AsyncIterator[Figure]:
    """Rounds of load on the echo and on the daemon take turns; the medians count."""
    rounds, seconds = (1, 0.2) if setting.quick else (5, 1.0)
    async with (
        ServerProcess("the echo server", "-m", "client.bench.echo") as echo,
        daemon(setting.directory / "data", "--log-level", "error") as server,
    ):
        members = await form_group(server.address, "heartbeats", CONNECTIONS)
        exchanges = [exchange_of(member) for member in members]
        floor_load = await Load.connect(echo.address, [Exchange(each.request, each.request) for each in exchanges])
        load = await Load.connect(server.address, exchanges)
        try:
            floors: list[float] = []
            rates: list[float] = []
            for _ in range(rounds):
                floors.append((await floor_load.round(seconds)).rate)
                rates.append((await load.round(seconds)).rate)
        finally:
            load.close()
            floor_load.close()
    yield Figure(
        "heartbeats",
        "requests_per_s",
        median(rates),
        "1/s",
        median(floors),
        "asyncio echo of the same frames",
        {"connections": CONNECTIONS, "in_flight": 1, "rounds": rounds, "round_s": seconds},
    )


def exchange_of(member: RawMember) -> Exchange:
    """A member's Heartbeat and the one right answer."""
    request = HeartbeatRequest(member.group_id, member.generation, member.member_id, None, 0)
    return Exchange(
        encode_request(request.api_key, 0, _CORRELATION_ID, "bench", encode_message(request)),
        encode_response(_CORRELATION_ID, encode_message(HeartbeatResponse(ErrorCode.NONE))),
    )
