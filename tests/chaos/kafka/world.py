"""A world whose clients are Kafka's: consumers and producers at the port for them, behind a proxy, beside Cohort's members.

Kafka's clients are hurt as Cohort's own are, by the faults of ``tests.chaos``. Cohort's members share groups with them and
reach the daemon without a proxy.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

from tests.chaos.groups import Assignors, ChaosGroup
from tests.chaos.kafka.aiokafka_member import ASSIGNOR as AIOKAFKA_ASSIGNOR
from tests.chaos.kafka.aiokafka_member import COMMIT_MODES as AIOKAFKA_COMMIT_MODES
from tests.chaos.kafka.producers import CLIENTS as PRODUCERS
from tests.chaos.member import COMMIT_MODES, WORK
from tests.chaos.processes import ChaosProcess
from tests.chaos.proxy import Proxy
from tests.chaos.world import LOOKING_FOR_EXPIRED_OFFSETS, TOPICS, World, free_port
from tests.daemon_process import DaemonProcess

GROUPS: Final = ("eager", "cooperative", "eager-static")
"""The kinds of the groups: one config of librdkafka cannot name eager and cooperative assignors, so nothing is upgraded."""
KINDS: Final = (
    *("kill-member", "stop-member", "leave-member", "scale-up", "scale-down", "restart-static", "kill-producer"),
    *("grow-topic", "kill-daemon", "restart-daemon", "stop-daemon"),
    *("reset-connections", "delay-traffic", "stall-one-way", "lose-answers", "cut-off"),
)
"""The faults that mean something here, of those that the chaos runs have."""
MODULES: Final = {"confluent": "tests.chaos.kafka.confluent_member", "aiokafka": "tests.chaos.kafka.aiokafka_member"}
COHORT: Final = "cohort"
LOW, HIGH = 6, 9
_RATE: Final = 40


class KafkaWorld(World):
    """See ``World``. A member's client is drawn: confluent-kafka, aiokafka where it knows the assignor, or Cohort."""

    def __init__(self, directory: Path, random: Random) -> None:
        super().__init__(directory, random, LOW, HIGH, GROUPS)

    def prepare_daemon(self) -> None:
        """With a port for Kafka's clients, and the proxy before that."""
        port = free_port()
        self.proxy = Proxy(free_port(), port)
        self.daemon = DaemonProcess(
            self.directory / "data",
            *("--kafka-port", str(port), "--kafka-min-session-timeout-ms", "3000"),
            *("--kafka-advertised-host", "127.0.0.1", "--kafka-advertised-port", str(self.proxy.port)),
            *("--segment-bytes", "65536", "--offsets-segment-bytes", "65536", "--compaction-interval-ms", "4000"),
            *LOOKING_FOR_EXPIRED_OFFSETS,
        )
        self.daemon.port = free_port()

    @property
    def address(self) -> str:
        """Where Cohort's clients connect: the daemon itself."""
        return self.daemon.address

    @property
    def kafka_address(self) -> str:
        """Where Kafka's clients connect: the proxy."""
        return f"127.0.0.1:{self.proxy.port}"

    async def add_producer(self, promise: str) -> ChaosProcess:
        """One more producer, of either client."""
        name = f"p{len(self.producers)}"
        self.producers[name] = ChaosProcess(
            *(name, "tests.chaos.kafka.producers", self.directory, self.ledger),
            client=self.random.choice(list(PRODUCERS)),
            bootstrap=self.kafka_address,
            topics=",".join(TOPICS),
            promise=promise,
            rate=_RATE,
            seed=self.random.getrandbits(32),
        )
        await self.producers[name].start()
        return self.producers[name]

    async def start_member(
        self, group: ChaosGroup, *, after: ChaosProcess | None = None, everything: bool = False
    ) -> ChaosProcess:
        """See ``World``; one in the place of another is of the same client."""
        number = next(self._names)
        draw = Random(f"{number} {self.random.getrandbits(32)}")
        assignors: Assignors = (
            group.assignors(draw) if after is None else tuple(str(after.options["assignors"]).split(","))
        )
        known = [*MODULES, COHORT] if AIOKAFKA_ASSIGNOR.name in assignors else ["confluent", COHORT]
        client = draw.choice(known) if after is None else after.name.partition("-")[2]
        taken = [member.options["instance"] for member in self.living(group.id)]
        commits: tuple[str, ...] = COMMIT_MODES
        if client == "aiokafka":
            assignors, commits = (AIOKAFKA_ASSIGNOR.name,), AIOKAFKA_COMMIT_MODES
        member = ChaosProcess(
            *(
                f"{group.letter}{number}-{client}",
                MODULES.get(client, "tests.chaos.member"),
                self.directory,
                self.ledger,
            ),
            bootstrap=self.address if client == COHORT else self.kafka_address,
            group=group.id,
            instance=group.instance(taken) if after is None else after.options["instance"],
            topics=",".join(TOPICS) if everything else draw.choice(("orders", ",".join(TOPICS))),
            assignors=",".join(assignors),
            commits=draw.choice(commits),
            work=draw.choice(list(WORK)) if client == COHORT else None,
            seed=draw.getrandbits(32),
        )
        return await self.begin(member)
