"""Puts the parts of a consumer together, each with one job and its own state.

::

    TopicSelection        what was asked for: topics, a pattern, partitions             subscription.py
    ConsumerCoordinator   membership, commits, changes of topics                        coordinator.py
    ConsumerParticipant   what happens to partitions at a rebalance                     rebalance.py
    Assignment            the partitions that are read, their positions and buffers     assignment.py, partition.py
    Positions             where reading begins, goes on, and how far it is behind       positions.py
    Fetcher               fetches ahead, into bounded buffers                           fetcher.py
    FetchCollector        hands out what is buffered                                    fetch_collector.py
    Process               has records handled                                           process.py
      Workers             a task a partition, or a key                                  workers.py, handler_task.py
      HandlerCalls        calls of the handler, and what fails                          handler_calls.py, error_policy.py
      OutputTransactions  outputs and offsets, all or nothing                           transforming.py
    ConsumerLifecycle     starts and stops these in order                               lifecycle.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from client.consumer.assignment import Assignment
from client.consumer.config import ConsumerSettings
from client.consumer.coordinator import ConsumerCoordinator, Departures
from client.consumer.decoding import BatchDecoder
from client.consumer.fetch_collector import FetchCollector
from client.consumer.fetcher import Fetcher
from client.consumer.lifecycle import ConsumerLifecycle
from client.consumer.positions import Positions
from client.consumer.process import Process
from client.consumer.subscription import TopicSelection
from client.transport.background_loop import Background
from client.transport.cluster import Cluster


class ConsumerParts:
    """The parts of one consumer; nothing runs before ``lifecycle.start``."""

    def __init__(
        self,
        settings: ConsumerSettings,
        background: Background | None,
        random: Random,
        clock: Callable[[], int] | None,
    ) -> None:
        news, selection, departures = asyncio.Event(), TopicSelection(), Departures()
        cluster = self.cluster = Cluster(
            settings.bootstrap_servers,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            random=Random(random.getrandbits(64)),
        )
        assignment = self.assignment = Assignment(BatchDecoder(settings.key_deserializer, settings.value_deserializer))
        positions = self.positions = Positions(
            cluster, assignment, settings, news, is_new=selection.is_new, before_committed=departures.wait
        )
        fetcher = self.fetcher = Fetcher(cluster, assignment, positions, settings, news)
        positions.on_found = fetcher.wake
        coordinator = self.coordinator = ConsumerCoordinator(
            settings, cluster, selection, assignment, positions, fetcher, departures, news, background, random
        )
        self.collector = FetchCollector(settings, coordinator, assignment, positions, fetcher, news)
        self.process = Process(
            settings, coordinator, assignment, positions, self.collector, fetcher, news, clock, random
        )
        self.lifecycle = ConsumerLifecycle(
            cluster, selection, assignment, positions, fetcher, coordinator, self.process, departures, news
        )
