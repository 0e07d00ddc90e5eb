"""An option that a client does not have is refused with the one that is meant."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from client import Admin, Consumer, Member, Producer
from client.option_names import NOT_NEEDED, NOT_NEEDED_BY, RENAMED, unknown_options
from client.tracing import TracedConsumer, TracedProducer

AIOKAFKA = {
    "loop",
    "bootstrap_servers",
    "client_id",
    "metadata_max_age_ms",
    "request_timeout_ms",
    "api_version",
    "retry_backoff_ms",
    "security_protocol",
    "ssl_context",
    "connections_max_idle_ms",
    "sasl_mechanism",
    "sasl_plain_password",
    "sasl_plain_username",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
}
"""The options that all of its clients have."""
AIOKAFKA_PRODUCER = {
    *AIOKAFKA,
    "acks",
    "key_serializer",
    "value_serializer",
    "compression_type",
    "max_batch_size",
    "partitioner",
    "max_request_size",
    "linger_ms",
    "enable_idempotence",
    "transactional_id",
    "transaction_timeout_ms",
}
AIOKAFKA_CONSUMER = {
    *AIOKAFKA,
    "group_id",
    "group_instance_id",
    "key_deserializer",
    "value_deserializer",
    "fetch_max_wait_ms",
    "fetch_max_bytes",
    "fetch_min_bytes",
    "max_partition_fetch_bytes",
    "auto_offset_reset",
    "enable_auto_commit",
    "auto_commit_interval_ms",
    "check_crcs",
    "partition_assignment_strategy",
    "max_poll_interval_ms",
    "rebalance_timeout_ms",
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "consumer_timeout_ms",
    "max_poll_records",
    "exclude_internal_topics",
    "isolation_level",
}


def options_of(client: type) -> list[str]:
    parameters = inspect.signature(client).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_POSITIONAL]


@pytest.mark.parametrize(
    ("client", "names"),
    [
        (Producer, AIOKAFKA_PRODUCER),
        (Consumer, AIOKAFKA_CONSUMER),
        (Admin, AIOKAFKA),
    ],
)
def test_every_option_of_aiokafka_is_there_or_explained(client: type, names: set[str]) -> None:
    options = options_of(client)
    for name in sorted(names):
        if name not in options:
            for owner in (client, *client.__subclasses__()):  # the traced ones
                text = unknown_options(owner, [name])
                assert "it is named" in text or "leave it out" in text, text


@pytest.mark.parametrize(
    ("client", "option", "text"),
    [
        (Producer, {"compression_type": "gzip"}, "Producer has no option 'compression_type': it is named compression$"),
        (Producer, {"max_batch_size": 1}, "it is named batch_size"),
        (Producer, {"linger.ms": 1}, "Producer has no option 'linger.ms': it is named linger_ms"),
        (Producer, {"max.request.size": 1}, "it is named max_request_bytes"),
        (Producer, {"transactional.id": "t"}, "it is named transactional_id"),
        (Producer, {"ssl_context": None}, "neither TLS nor authentication"),
        (Producer, {"topic": "t"}, r"the first argument of send\(\)"),
        (Producer, {"linger_mss": 1}, "did you mean linger_ms"),
        (Producer, {"xyzzy": 1, "loop": None}, "'xyzzy': it has bootstrap_servers, .*; .* 'loop': leave it out"),
        (Consumer, {"partition_assignment_strategy": ()}, "it is named assignors"),
        (Consumer, {"consumer_timeout_ms": 1}, r"getmany\(timeout_ms=...\)"),
        (Consumer, {"topics": ["t"]}, r"topics come first and without a name"),
        (Consumer, {"on_assign": None}, r"subscribe\(topics, listener=...\)"),
        (TracedConsumer, {"consumer_timeout_ms": 1}, r"TracedConsumer has no option .*: .*getmany\(timeout_ms=...\)"),
        (TracedConsumer, {"topics": ["t"]}, r"topics come first and without a name"),
        (TracedConsumer, {"group": "g"}, "it is named group_id"),
        (TracedConsumer, {"trace_provider": None}, r"did you mean tracer_provider\?"),
        (TracedProducer, {"topic": "t"}, r"TracedProducer has no option 'topic': .*the first argument of send\(\)"),
        (TracedProducer, {"tracing_provider": None}, r"did you mean tracer_provider\?"),
        (TracedProducer, {"xyzzy": 1}, "it has bootstrap_servers, .*, tracer_provider$"),
        (Admin, {"request_timeout_ms": 1}, "every method takes timeout_ms="),
        (Admin, {"hosts": "x"}, "it is named bootstrap_servers"),
    ],
)
def test_an_unknown_option_names_the_right_one(client: type, option: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        client(**option)


def test_an_unknown_option_of_a_member_names_the_right_one() -> None:
    with pytest.raises(TypeError, match="Member has no option 'instance_id': it is named group_instance_id"):
        Member("g", instance_id="a")  # type: ignore[call-arg]


def test_a_class_of_a_program_is_advised_as_the_one_that_it_is_made_of() -> None:
    class Orders(Consumer[bytes, bytes]):
        def __init__(self, *, region: str, **settings: Any) -> None:
            super().__init__("orders", **settings)

    with pytest.raises(TypeError, match=r"^Orders has no option 'listener': .*subscribe\(topics, listener=...\)"):
        Orders(region="eu", listener=None)
    with pytest.raises(TypeError, match=r"^Orders has no option 'regions': did you mean region"):
        Orders(region="eu", regions=1)


def test_the_signature_is_seen_by_tools() -> None:
    assert "batch_size" in inspect.signature(Producer).parameters


def test_the_tables_lead_to_options_that_exist_and_hide_none() -> None:
    options = {name for client in (Producer, Consumer, Admin, Member) for name in options_of(client)}
    assert set(RENAMED.values()) <= options
    assert not options & (set(RENAMED) | set(NOT_NEEDED))
    for owner, names in NOT_NEEDED_BY.items():
        own = next(client for client in (Producer, Consumer, Admin, Member) if client.__name__ == owner)
        assert not set(names) & set(options_of(own))
