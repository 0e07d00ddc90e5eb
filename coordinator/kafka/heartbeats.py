"""Heartbeats that are held, so that the answer to one can bring the news of a rebalance.

A client of Kafka sends one every few seconds and would hear of a rebalance at the next. Held, it is answered when the group
needs the member, or after a while. As answers leave in the order of requests, others of the connection must not wait for it:
with the next one it is answered as if its time were over. The member's session was renewed when it came.

Some clients, kafkajs among them, handle no record while a heartbeat is under way, and would stand still for as long as it is
held. They are older than KIP-511 and KIP-482; so it is held for clients only that say what they are, or send it in a version
with tagged fields.
"""

from __future__ import annotations

from typing import Final

from coordinator.kafka.calls import KafkaCall, Translator
from coordinator.kafka.groups import group_handler
from coordinator.kafka.kafka_node import KafkaNode
from protocol.errors import ErrorCode
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from protocol.kafka.messages.heartbeat_response import HeartbeatResponse
from protocol.messages import groups as native

_FLEXIBLE: Final = 4
"""The first version of Heartbeat with tagged fields (KIP-482)."""


class Heartbeats:
    """A member is alive: the heartbeats of one port, of which each connection has at most one that is held."""

    def __init__(self, node: KafkaNode) -> None:
        self._handle = group_handler(node, native.HeartbeatRequest)
        self._hold_ms = node.node.settings.kafka_heartbeat_hold_ms
        self._held: dict[int, KafkaCall] = {}
        """By the number of the connection."""

    def translator(self) -> Translator:
        """For the table of API keys."""
        return Translator(HeartbeatRequest, self.handle, self.refusal)

    def handle(self, call: KafkaCall) -> None:
        """Answers when the group needs the member, when the time is over, or with the next request of the connection."""
        request: HeartbeatRequest = call.message
        hold_ms = self._hold_ms if call.version >= _FLEXIBLE or call.connection.software else 0
        asked = native.HeartbeatRequest(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id, hold_ms
        )
        number, held = call.connection.number, self._held

        def told(response: native.HeartbeatResponse) -> None:
            held.pop(number, None)
            call.reply(HeartbeatResponse(0, response.error_code))

        call.ask(self._handle, asked, told)
        if call.open:
            held[number] = call
            call.on_abandon = lambda: held.pop(number, None)

    def give_back(self, number: int) -> None:
        """Another request came over the connection of this number."""
        call = self._held.pop(number, None)
        if call is not None and call.open:
            call.give_up()
            call.reply(HeartbeatResponse())

    def refusal(self, request: HeartbeatRequest, version: int, code: ErrorCode, text: str) -> HeartbeatResponse:
        """See ``Translator``."""
        return HeartbeatResponse(error_code=code)
