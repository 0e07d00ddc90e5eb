"""Option names of other Kafka clients, and what Cohort's are instead.

``explains_options`` decorates the constructors of ``Producer``, ``Consumer``, ``Admin`` and ``Member``: a keyword that they
do not have is a ``TypeError`` that names the right one. aiokafka, kafka-python and confluent-kafka share most names; dots
count as underscores, so that ``**{"linger.ms": 5}`` is explained as well.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar, cast

Constructor = TypeVar("Constructor", bound=Callable[..., None])

_WITHOUT_NAME: Final = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)

RENAMED: Final[dict[str, str]] = {
    "auto_commit": "enable_auto_commit",
    "auto_commit_interval": "auto_commit_interval_ms",
    "batch_num_messages": "batch_size",
    "brokers": "bootstrap_servers",
    "bootstrap_server": "bootstrap_servers",
    "buffer_memory": "buffer_bytes",
    "compression_codec": "compression",
    "compression_type": "compression",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "group": "group_id",
    "group_name": "group_id",
    "hosts": "bootstrap_servers",
    "instance_id": "group_instance_id",
    "linger": "linger_ms",
    "max_batch_size": "batch_size",
    "max_block_ms": "delivery_timeout_ms",
    "max_in_flight_requests_per_connection": "max_in_flight",
    "max_request_size": "max_request_bytes",
    "message_max_bytes": "max_request_bytes",
    "message_send_max_retries": "retries",
    "message_timeout_ms": "delivery_timeout_ms",
    "partition_assignment_strategy": "assignors",
    "queue_buffering_max_kbytes": "buffer_bytes",
    "queue_buffering_max_ms": "linger_ms",
    "request_required_acks": "acks",
    "request_timeout": "request_timeout_ms",
    "servers": "bootstrap_servers",
    "session_timeout": "session_timeout_ms",
}
"""Other clients' names to Cohort's."""

_TRACKED: Final = "leave it out: clients are told of changes of topics and leaders at once, and reconnect by themselves"
_PLAIN: Final = "leave it out: Cohort has neither TLS nor authentication yet; keep daemons in a network that you trust"
_BACKOFF: Final = "leave it out: retries back off from 20 ms to 1 s with jitter until their timeout"
_LOOP: Final = "leave it out: the loop that runs start() is used"

NOT_NEEDED: Final[dict[str, str]] = {
    "api_version": "leave it out: clients and daemons find out by themselves what both understand",
    "api_version_auto_timeout_ms": "leave it out: clients and daemons find out by themselves what both understand",
    "connections_max_idle_ms": _TRACKED,
    "loop": _LOOP,
    "metadata_max_age_ms": _TRACKED,
    "reconnect_backoff_max_ms": _BACKOFF,
    "reconnect_backoff_ms": _BACKOFF,
    "retry_backoff_max_ms": _BACKOFF,
    "retry_backoff_ms": _BACKOFF,
    "sasl_kerberos_domain_name": _PLAIN,
    "sasl_kerberos_service_name": _PLAIN,
    "sasl_mechanism": _PLAIN,
    "sasl_oauth_token_provider": _PLAIN,
    "sasl_plain_password": _PLAIN,
    "sasl_plain_username": _PLAIN,
    "security_protocol": _PLAIN,
    "ssl": _PLAIN,
    "ssl_cafile": _PLAIN,
    "ssl_certfile": _PLAIN,
    "ssl_check_hostname": _PLAIN,
    "ssl_context": _PLAIN,
    "ssl_keyfile": _PLAIN,
}
"""Other clients' options that Cohort has no counterpart for, and what to do instead."""

_LISTENED: Final = "leave it out: pass a listener to subscribe(topics, listener=...)"
_POSITIONAL: Final = 'leave it out: topics come first and without a name, as in Consumer("orders", "payments")'
_OF_SEND: Final = "leave it out: the topic is the first argument of send()"
_OF_METHODS: Final = "leave it out: every method takes timeout_ms="

NOT_NEEDED_BY: Final[dict[str, dict[str, str]]] = {
    "Admin": dict.fromkeys(("default_api_timeout_ms", "request_timeout_ms", "timeout_ms"), _OF_METHODS),
    "Consumer": {
        "check_crcs": "leave it out: checksums are always checked",
        "consumer_timeout_ms": "leave it out: getmany(timeout_ms=...) returns by then, with or without records",
        "default_offset_commit_callback": "leave it out: await commit() raises what went wrong",
        "exclude_internal_topics": "leave it out: patterns never match internal topics",
        "pattern": "leave it out: subscribe(pattern=...) takes it",
        **dict.fromkeys(("listener", "on_assign", "on_lost", "on_revoke", "rebalance_listener"), _LISTENED),
        **dict.fromkeys(("topic", "topics"), _POSITIONAL),
    },
    "Producer": dict.fromkeys(("topic", "topics"), _OF_SEND),
}
"""The same, for one class only and what is made of it, such as ``TracedConsumer``."""


def explains_options(constructor: Constructor) -> Constructor:
    """Decorates an ``__init__``: an option it does not have raises ``TypeError`` naming the one that is meant.

    Classes made of its own are advised as it is, with the options that they add.
    """
    options = _options_of(constructor)

    @functools.wraps(constructor)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        unknown = [name for name in kwargs if name not in options]
        if unknown:
            raise TypeError(unknown_options(type(self), unknown))
        constructor(self, *args, **kwargs)

    return cast("Constructor", checked)


def unknown_options(owner: type, unknown: Collection[str]) -> str:
    """What to say of options that a class, of ``Producer`` and the like or made of one, does not have."""
    constructors = filter(inspect.isfunction, (vars(base).get("__init__") for base in reversed(owner.__mro__)))
    known = dict.fromkeys(name for each in constructors for name in _options_of(each))
    options = [name for name in known if name not in unknown]  # a class may hand on what it alone knows
    problems = [f"{owner.__name__} has no option {name!r}: {_instead(owner, name, options)}" for name in unknown]
    return "; ".join(problems)


def _options_of(constructor: Callable[..., None]) -> list[str]:
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    return [parameter.name for parameter in parameters if parameter.kind not in _WITHOUT_NAME]


def _instead(owner: type, name: str, options: Collection[str]) -> str:
    plain = name.replace(".", "_").replace("-", "_").lower()
    if plain != name and plain in options:
        return f"it is named {plain}"
    renamed = RENAMED.get(plain)
    if renamed in options:
        return f"it is named {renamed}"
    of_class = (NOT_NEEDED_BY.get(base.__name__, {}).get(plain) for base in owner.__mro__)
    advice = next(filter(None, of_class), None) or NOT_NEEDED.get(plain)
    if advice is not None:
        return advice
    near = difflib.get_close_matches(plain, options, n=1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(options)}"
