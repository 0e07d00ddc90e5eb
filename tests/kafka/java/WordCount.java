import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams counts words: {@code java WordCount.java GUARANTEE HOST:PORT}. Its second life has lost its state on disk, and restores
 * it from the changelog; ends with a stack trace when a count is wrong.
 */
public final class WordCount {
    private static final List<String> LINES = List.of("tea for two", "two for tea", "me for you", "you for me");
    private static final int TIMES = 50;
    private static final long DEADLINE_MS = 90_000;

    public static void main(String[] arguments) throws Exception {
        String guarantee = arguments[0];
        String servers = arguments[1];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic("lines", 3, (short) 1), new NewTopic("counts", 2, (short) 1)))
                .all().get(30, TimeUnit.SECONDS);
        }
        for (int life = 1; life <= 2; life++) {
            write(settings);
            try (KafkaStreams streams = new KafkaStreams(topology(), streaming(guarantee, servers))) {
                streams.start();
                await(settings, life);
                check(streams.close(Duration.ofSeconds(30)), "it does not end");
            }
        }
        System.out.println(guarantee + " passed");
    }

    private static org.apache.kafka.streams.Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream("lines");
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    private static Properties streaming(String guarantee, String servers) throws Exception {
        Path state = Files.createTempDirectory(Path.of(System.getProperty("java.io.tmpdir")), "streams");
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, state.toString());
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "200");
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, "1");
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "2");
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class.getName());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class.getName());
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("consumer.session.timeout.ms", "6000"); // as it closes, it leaves no group: its next life waits for that
        return settings;
    }

    private static void write(Properties settings) {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < TIMES; number++) {
                for (String line : LINES) {
                    producer.send(new ProducerRecord<>("lines", number % 3, null, line));
                }
            }
        }
    }

    private static void await(Properties settings, int life) {
        Map<String, Long> expected = new HashMap<>();
        LINES.forEach(line -> List.of(line.split(" ")).forEach(word -> expected.merge(word, (long) TIMES * life, Long::sum)));
        Properties reading = new Properties();
        reading.putAll(settings);
        reading.put("isolation.level", "read_committed");
        Map<String, Long> counts = new HashMap<>();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        try (KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new LongDeserializer())) {
            List<TopicPartition> partitions = List.of(new TopicPartition("counts", 0), new TopicPartition("counts", 1));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (!counts.equals(expected)) {
                check(System.currentTimeMillis() < deadline, "in life " + life + " it counted " + counts + ", expected " + expected);
                consumer.poll(Duration.ofMillis(200)).forEach(record -> counts.put(record.key(), record.value()));
            }
        }
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
