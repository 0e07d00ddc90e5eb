import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ConsumerGroupState;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's Java clients against a broker: {@code java Clients.java TASK HOST:PORT}; ends with a stack trace when an answer is wrong. */
public final class Clients {
    private static final int RECORDS = 300;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long DEADLINE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        String task = arguments[0];
        String servers = arguments[1];
        switch (task) {
            case "groups" -> groups(servers);
            case "transactions" -> transactions(servers);
            case "administration" -> administration(servers);
            case "consumer-protocol" -> consumerProtocol(servers);
            default -> throw new IllegalArgumentException(task);
        }
        System.out.println(task + " passed");
    }

    /** Every compression is written with idempotence and read in a group: cooperative and eager, of one member, of two, of a static one. */
    private static void groups(String servers) throws Exception {
        try (Admin admin = admin(servers)) {
            wait(admin.createTopics(List.of(new NewTopic("t", 4, (short) 1))).all());
        }
        Set<String> sent = new HashSet<>();
        for (String compression : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            Properties settings = settings(servers);
            settings.put("compression.type", compression);
            try (KafkaProducer<String, String> producer = producer(settings)) {
                List<Future<RecordMetadata>> pending = new ArrayList<>();
                for (int number = 0; number < RECORDS; number++) {
                    ProducerRecord<String, String> record = new ProducerRecord<>("t", "k" + number, compression + " " + number);
                    record.headers().add("compression", compression.getBytes(StandardCharsets.UTF_8));
                    pending.add(producer.send(record));
                    sent.add(record.value());
                }
                for (Future<RecordMetadata> each : pending) {
                    check(each.get(30, TimeUnit.SECONDS).hasOffset(), "an acknowledgement without an offset");
                }
            }
        }
        readInGroup(servers, "cooperative", CooperativeStickyAssignor.class, null, sent);
        readInGroup(servers, "eager", RangeAssignor.class, null, sent);
        readInGroup(servers, "static", CooperativeStickyAssignor.class, "instance-1", sent);
    }

    private static void readInGroup(String servers, String group, Class<?> assignor, String instance, Set<String> sent) {
        Properties settings = settings(servers);
        settings.put("group.id", group);
        settings.put("partition.assignment.strategy", assignor.getName());
        settings.put("session.timeout.ms", "10000");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        Properties first = new Properties();
        first.putAll(settings);
        if (instance != null) {
            first.put("group.instance.id", instance);
        }
        Set<String> read = new HashSet<>();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        try (KafkaConsumer<String, String> one = consumer(first); KafkaConsumer<String, String> two = consumer(settings)) {
            one.subscribe(List.of("t"));
            two.subscribe(List.of("t"));
            while (one.assignment().size() != 2 || two.assignment().size() != 2 || position(one) + position(two) < sent.size()) {
                check(System.currentTimeMillis() < deadline, group + ": " + read.size() + " records, " + one.assignment() + two.assignment());
                take(one, read);
                take(two, read);
            }
            one.commitSync();
            two.commitSync();
            check(!one.groupMetadata().memberId().isEmpty(), "no member id");
        }
        check(read.equals(sent), group + ": other records than were sent");
        try (KafkaConsumer<String, String> next = consumer(first)) {
            next.subscribe(List.of("t"));
            while (next.assignment().size() != 4) {
                check(System.currentTimeMillis() < deadline, group + ": the next member has " + next.assignment());
                check(next.poll(POLL).isEmpty(), group + ": read again what was committed");
            }
            long committed = next.committed(next.assignment()).values().stream().mapToLong(OffsetAndMetadata::offset).sum();
            check(committed == sent.size(), group + ": committed " + committed);
            check(next.endOffsets(next.assignment()).values().stream().mapToLong(Long::longValue).sum() == committed, "end offsets");
            next.seekToBeginning(next.assignment());
            check(!next.poll(Duration.ofSeconds(20)).isEmpty(), group + ": nothing after a seek to the beginning");
            Map<TopicPartition, Long> times = new HashMap<>();
            next.assignment().forEach(partition -> times.put(partition, 0L));
            check(next.offsetsForTimes(times).values().stream().allMatch(found -> found.offset() == 0), "offsets for times");
        }
    }

    private static long position(KafkaConsumer<String, String> consumer) {
        return consumer.assignment().stream().mapToLong(consumer::position).sum();
    }

    private static void take(KafkaConsumer<String, String> consumer, Set<String> read) {
        ConsumerRecords<String, String> found = consumer.poll(POLL);
        for (ConsumerRecord<String, String> record : found) {
            byte[] header = record.headers().lastHeader("compression").value();
            check(record.value().startsWith(new String(header, StandardCharsets.UTF_8)), "another header than was sent");
            read.add(record.value());
        }
    }

    /** Read, transform, write: commits and aborts with offsets of a group; a fenced producer; what administrators see. */
    private static void transactions(String servers) throws Exception {
        try (Admin admin = admin(servers)) {
            wait(admin.createTopics(List.of(new NewTopic("in", 2, (short) 1), new NewTopic("out", 2, (short) 1))).all());
        }
        try (KafkaProducer<String, String> producer = producer(settings(servers))) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>("in", number % 2, null, String.valueOf(number)));
            }
        }
        Properties reading = settings(servers);
        reading.put("group.id", "transform");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "25");
        Properties writing = settings(servers);
        writing.put("transactional.id", "transform-1");
        int turn = 0;
        int committed = 0;
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        try (KafkaConsumer<String, String> consumer = consumer(reading); KafkaProducer<String, String> producer = producer(writing)) {
            producer.initTransactions();
            consumer.subscribe(List.of("in"));
            while (committed < RECORDS) {
                check(System.currentTimeMillis() < deadline, committed + " records were transformed");
                ConsumerRecords<String, String> found = consumer.poll(POLL);
                if (found.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<String, String> record : found) {
                    producer.send(new ProducerRecord<>("out", record.partition(), null, record.value()));
                    offsets.put(new TopicPartition("in", record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (turn++ % 2 == 0) {
                    producer.abortTransaction();
                    consumer.committed(consumer.assignment()).forEach(
                        (partition, offset) -> consumer.seek(partition, offset == null ? 0 : offset.offset()));
                } else {
                    producer.commitTransaction();
                    committed += found.count();
                }
            }
        }
        check(read(servers, "out", "read_committed").size() == RECORDS, "read_committed has others than were committed");
        check(new HashSet<>(read(servers, "out", "read_committed")).size() == RECORDS, "a record came twice");
        check(read(servers, "out", "read_uncommitted").size() > RECORDS, "nothing of what was aborted is there");
        fenced(servers, writing);
    }

    private static void fenced(String servers, Properties writing) throws Exception {
        try (KafkaProducer<String, String> old = producer(writing); Admin admin = admin(servers)) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>("out", 0, null, "never")).get(30, TimeUnit.SECONDS);
            check(wait(admin.listTransactions().all()).stream().anyMatch(each -> each.transactionalId().equals("transform-1")), "list");
            check(wait(admin.describeTransactions(List.of("transform-1")).all()).get("transform-1").topicPartitions()
                .equals(Set.of(new TopicPartition("out", 0))), "describe");
            abortedByAnAdministrator(admin, new TopicPartition("out", 0));
            try (KafkaProducer<String, String> young = producer(writing)) {
                young.initTransactions();
                try {
                    old.commitTransaction();
                    throw new AssertionError("a fenced producer committed");
                } catch (org.apache.kafka.common.errors.ProducerFencedException
                         | org.apache.kafka.common.errors.InvalidProducerEpochException expected) {
                    check(read(servers, "out", "read_committed").size() == RECORDS, "a fenced transaction is read");
                }
            }
        }
    }

    private static void abortedByAnAdministrator(Admin admin, TopicPartition partition) throws Exception {
        List<ProducerState> open = openIn(admin, partition);
        check(open.size() == 1, "producers");
        ProducerState one = open.get(0);
        wait(admin.abortTransaction(new AbortTransactionSpec(
            partition, one.producerId(), (short) one.producerEpoch(), one.coordinatorEpoch().orElse(0))).all());
        check(openIn(admin, partition).isEmpty(), "a transaction that an administrator aborted is open");
    }

    private static List<ProducerState> openIn(Admin admin, TopicPartition partition) throws Exception {
        return wait(admin.describeProducers(List.of(partition)).all()).get(partition).activeProducers().stream()
            .filter(each -> each.currentTransactionStartOffset().isPresent()).toList();
    }

    private static List<String> read(String servers, String topic, String isolation) {
        Properties settings = settings(servers);
        settings.put("isolation.level", isolation);
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(settings)) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                check(System.currentTimeMillis() < deadline, "the end of " + topic + " was not reached");
                consumer.poll(POLL).forEach(record -> values.add(record.value()));
            }
        }
        return values;
    }

    /** Topics, settings, offsets, groups, the cluster. */
    private static void administration(String servers) throws Exception {
        try (Admin admin = admin(servers)) {
            wait(admin.createTopics(List.of(new NewTopic("t", 2, (short) 1).configs(Map.of("retention.ms", "3600000")))).all());
            check(wait(admin.describeCluster().nodes()).size() == 1, "nodes");
            check(wait(admin.listTopics().names()).contains("t"), "topics");
            check(wait(admin.describeTopics(List.of("t")).allTopicNames()).get("t").partitions().size() == 2, "partitions");
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "t");
            wait(admin.incrementalAlterConfigs(Map.of(
                topic, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET)))).all());
            check(wait(admin.describeConfigs(List.of(topic)).all()).get(topic).get("retention.ms").value().equals("7200000"), "settings");
            wait(admin.createPartitions(Map.of("t", NewPartitions.increaseTo(3))).all());
            TopicPartition partition = new TopicPartition("t", 0);
            try (KafkaProducer<String, String> producer = producer(settings(servers))) {
                for (int number = 0; number < 10; number++) {
                    producer.send(new ProducerRecord<>("t", 0, "k", String.valueOf(number))).get(30, TimeUnit.SECONDS);
                }
            }
            wait(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).all());
            check(wait(admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).all()).get(partition).offset() == 4, "earliest");
            check(wait(admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all()).get(partition).offset() == 10, "latest");
            check(wait(admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all()).get(partition).offset() == 9, "largest time");
            groupAdministration(servers, admin, partition);
            check(!wait(admin.describeLogDirs(List.of(0)).allDescriptions()).isEmpty(), "log directories");
            check(wait(admin.describeFeatures().featureMetadata()).finalizedFeatures().containsKey("transaction.version"), "features");
            wait(admin.deleteTopics(List.of("t")).all());
            try {
                wait(admin.describeTopics(List.of("t")).allTopicNames());
                throw new AssertionError("a deleted topic is described");
            } catch (ExecutionException expected) {
                check(expected.getCause() instanceof UnknownTopicOrPartitionException, expected.toString());
            }
        }
    }

    @SuppressWarnings({"deprecation", "removal"}) // what takes its place is not there before Kafka 4.1
    private static void groupAdministration(String servers, Admin admin, TopicPartition partition) throws Exception {
        wait(admin.alterConsumerGroupOffsets("g", Map.of(partition, new OffsetAndMetadata(7, Optional.empty(), "by hand"))).all());
        check(wait(admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata()).get(partition).offset() == 7, "offsets");
        Properties settings = settings(servers);
        settings.put("group.id", "g");
        try (KafkaConsumer<String, String> consumer = consumer(settings)) {
            consumer.subscribe(List.of("t"));
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            List<String> read = new ArrayList<>();
            while (read.size() < 3) {
                check(System.currentTimeMillis() < deadline, "read " + read);
                consumer.poll(POLL).forEach(record -> read.add(record.value()));
            }
            check(read.equals(List.of("7", "8", "9")), "read " + read);
            ConsumerGroupDescription described = wait(admin.describeConsumerGroups(List.of("g")).all()).get("g");
            check(described.members().size() == 1, described.toString());
            check(described.members().iterator().next().assignment().topicPartitions().contains(partition), described.toString());
            consumer.commitSync();
        }
        check(wait(admin.listConsumerGroups().all()).stream().anyMatch(group -> group.groupId().equals("g")), "groups");
        wait(admin.deleteConsumerGroupOffsets("g", Set.of(partition)).all());
        wait(admin.deleteConsumerGroups(List.of("g")).all());
        try {
            ConsumerGroupDescription deleted = wait(admin.describeConsumerGroups(List.of("g")).all()).get("g");
            check(deleted.state() == ConsumerGroupState.DEAD, "a deleted group is described: " + deleted); // clients before 4.0
        } catch (ExecutionException expected) {
            check(expected.getCause() instanceof GroupIdNotFoundException, expected.toString());
        }
    }

    /** KIP-848 is not served, and the client says so at once. */
    private static void consumerProtocol(String servers) throws Exception {
        Properties settings = settings(servers);
        settings.put("group.id", "g");
        settings.put("group.protocol", "consumer");
        try (KafkaConsumer<String, String> consumer = consumer(settings)) {
            consumer.subscribe(List.of("t"));
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (true) {
                check(System.currentTimeMillis() < deadline, "no refusal");
                consumer.poll(POLL);
            }
        } catch (UnsupportedVersionException expected) {
            System.out.println(expected.getMessage());
        }
    }

    private static Properties settings(String servers) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        return settings;
    }

    private static Admin admin(String servers) {
        return Admin.create(settings(servers));
    }

    private static KafkaProducer<String, String> producer(Properties settings) {
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Properties settings) {
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static <T> T wait(KafkaFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
