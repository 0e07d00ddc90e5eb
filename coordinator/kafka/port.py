"""The port for Kafka's clients, put together; bounds, turns and connections are those of the daemon's listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from coordinator.config import ConfigurationError
from coordinator.kafka.apis import apis
from coordinator.kafka.calls import KafkaCall
from coordinator.kafka.codec import KafkaCodec
from coordinator.kafka.codes import CODE_NAMES
from coordinator.kafka.heartbeats import Heartbeats
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.kafka.refused_batches import RefusedBatches
from coordinator.log_output import get_logger
from coordinator.server.call import Handler, StepsLeft
from coordinator.server.connection import Port
from coordinator.server.dispatch import tell_failure
from coordinator.server.node import Node
from coordinator.server.request_meter import RequestMeter
from protocol.messages import Request

log = get_logger()

_LIBRARIES: Final = {"google_crc32c": "google-crc32c", "cramjam": "cramjam"}
"""What batches of Kafka's clients need, by the name of the module."""


def kafka_port(
    node: Node,
    handlers: Mapping[type[Request], Handler],
    new_id: Callable[[], str],
    meter: RequestMeter | None = None,
) -> Port[KafkaCall]:
    """A port that speaks Kafka's protocol, where ``handlers`` decide; ``new_id`` makes ids that nobody guesses.

    ``meter`` counts its requests, None where that is not asked for.

    Raises ``ConfigurationError`` when libraries are not installed that every batch of a Kafka client needs.
    """
    missing = [name for module, name in _LIBRARIES.items() if find_spec(module) is None]
    if missing:
        raise ConfigurationError(
            f"kafka_port is set, and batches of Kafka's clients need {' and '.join(missing)}: "
            "pip install 'aiocohort[kafka]'"
        )
    if find_spec("numpy") is not None:
        import_module(
            "numpy"
        )  # the records of batches are checked at once where it is loaded, and then in half the time
    kafka = KafkaNode(node, handlers, new_id)
    heartbeats, refused = Heartbeats(kafka), RefusedBatches()
    served = apis(kafka, heartbeats, refused)
    now = None
    if meter is not None:
        now, meter.names = meter.now, CODE_NAMES

    def handle(call: KafkaCall) -> StepsLeft:
        heartbeats.give_back(call.connection.number)
        if now is not None:
            call.begun_s = now()
        try:
            return call.api.translator.handle(call)
        except Exception:
            tell_failure(call)
            return None

    return Port(lambda: KafkaCodec(node.settings.max_frame_bytes, served), KafkaCall, handle, meter, refused.forget)
