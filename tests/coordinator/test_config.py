"""Settings: four sources, later ones win, unknown names are errors that name the nearest right one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import ConfigurationError, Settings, fit_open_files, load_settings, settings_from
from coordinator.replication.serving import MAX_ENTRIES
from coordinator.server.native_codec import NativeCodec
from protocol.framing import MAX_BATCH_IN_FRAME, MAX_RECORDS_IN_FRAME
from protocol.messages.replication import (
    FetchedReplica,
    FetchedReplicaTopic,
    ReplicaEpoch,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)


def test_without_anything_the_defaults_hold() -> None:
    settings, warnings = load_settings([], {})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.flush) == ("127.0.0.1", 7337, "ack")
    assert warnings == []


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cohort.toml"
    file.write_text('port = 1000\nhost = "10.0.0.1"\nflush = "os"\n')
    settings, _ = load_settings(
        ["--config", str(file), "--port", "3000"], {"COHORT_PORT": "2000", "COHORT_HOST": "::1"}
    )
    assert (settings.port, settings.host, settings.flush) == (3000, "::1", "os")


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "cohort.toml"
    file.write_text("segment_bytes = 4096\n")
    assert load_settings([], {"COHORT_CONFIG": str(file)})[0].segment_bytes == 4096


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 1\n", "did you mean 'port'"),
        ("segment_byte = 1\n", "did you mean 'segment_bytes'"),
        ('port = "7337"\n', "must be of type int"),
        ("port = 70000\n", "from 0 to 65535"),
        ("port = true\n", "must be of type int"),
        ('flush = "never"\n', "'ack' or 'os'"),
        ("port = \n", "no valid TOML"),
        ("min_session_timeout_ms = 5000\nmax_session_timeout_ms = 1000\n", "is above"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_right(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "cohort.toml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        load_settings(["--config", str(file)], {})


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings(["--config", "/nowhere/cohort.toml"], {})


def test_numbers_from_text_must_be_numbers() -> None:
    with pytest.raises(ConfigurationError, match="COHORT_PORT is 'many'"):
        load_settings([], {"COHORT_PORT": "many"})
    with pytest.raises(ConfigurationError, match="--segment-bytes"):
        load_settings(["--segment-bytes", "big"], {})


def test_a_mistyped_variable_is_warned_about_and_the_clients_own_are_not() -> None:
    settings, warnings = load_settings([], {"COHORT_PROT": "1", "COHORT_BOOTSTRAP": "localhost:1", "PATH": "/bin"})
    assert settings.port == 7337
    assert len(warnings) == 1
    assert "'port'" in warnings[0]


def test_an_unknown_option_exits_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        load_settings(["--prot", "1"], {})
    assert exit_.value.code == 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--sgment-bytes", "did you mean --segment-bytes?"),
        ("--sgment-bytes=5", "unknown option --sgment-bytes; did you mean --segment-bytes?"),
        ("--segment", "did you mean --segment-bytes?"),
        ("--cofnig", "did you mean --config?"),
        ("--zzzz", "cohortd --help lists them"),
        ("serve", "'serve' is no option"),
    ],
)
def test_an_unknown_option_is_told_the_nearest_and_never_taken_for_it(
    capsys: pytest.CaptureFixture[str], argument: str, message: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        load_settings([argument, "5"], {})
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("open_files", [224, 256, 1024, 4096, 20_000])
def test_partitions_and_connections_share_the_files_that_may_be_open(open_files: int) -> None:
    fitted, line = fit_open_files(Settings(), open_files)
    assert 0 < fitted.max_partitions <= Settings().max_partitions
    assert 0 < fitted.max_connections <= Settings().max_connections
    assert fitted.max_partitions + fitted.max_connections <= max(2, open_files)
    assert line.startswith(f"{open_files} files may be open: max_partitions is lowered from 10000 to ")
    assert (
        fitted
        == replace(Settings(), max_partitions=fitted.max_partitions, max_connections=fitted.max_connections).check()
    )


@pytest.mark.parametrize("open_files", [8, 64, 223])
def test_too_few_open_files_are_refused_with_how_to_get_more(open_files: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"only {open_files} files may be open.*224.*ulimit -n"):
        fit_open_files(Settings(), open_files)


def test_a_frame_must_have_room_for_the_largest_batch() -> None:
    with pytest.raises(
        ConfigurationError, match=r"max_frame_bytes is 2048.*max_message_bytes .1048588.*at least 1049612"
    ):
        load_settings(["--max-frame-bytes", "2048"], {})
    settings, _ = load_settings(["--max-frame-bytes", "2048", "--max-message-bytes", "1024"], {})
    assert (settings.max_frame_bytes, settings.max_message_bytes) == (2048, 1024)


@pytest.mark.parametrize(
    ("name", "most"),
    [("replica_fetch_max_bytes", 48 * 2**20), ("max_fetch_bytes", 48 * 2**20), ("max_message_bytes", 63 * 2**20)],
)
def test_what_is_fetched_at_once_fits_in_a_frame(name: str, most: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}.*{most}"):
        settings_from({name: most + 1, "max_frame_bytes": 2**27})
    assert getattr(settings_from({name: most, "max_frame_bytes": 2**27}), name) == most


@pytest.mark.parametrize("sizes", [[MAX_BATCH_IN_FRAME], [MAX_RECORDS_IN_FRAME // MAX_ENTRIES] * MAX_ENTRIES])
def test_the_largest_answer_that_the_settings_allow_is_sent(sizes: list[int]) -> None:
    far = 2**60
    epochs = tuple(ReplicaEpoch(2**30 + number, far + number) for number in range(300))

    def entry(size: int) -> FetchedReplicaTopic:
        told = FetchedReplica(9_999, 0, 2**30, far, 2**30, -1, -1, far, far, far, epochs * bool(size), bytes(size))
        return FetchedReplicaTopic("x" * 22, (told,))

    others = [0] * 2 * MAX_ENTRIES  # of which there is no more to tell than where they are
    response = ReplicaFetchResponse(0, tuple(map(entry, sizes + others)))
    pieces = NativeCodec(2**20).encode(7, ReplicaFetchRequest(1, 500, 2**30, ()), response)
    assert sum(map(len, pieces)) > sum(sizes), "it is no refusal"


@pytest.mark.parametrize("text", ["\u0667\u0663", "\uff17\uff13", "\u0967", "7_337", "0x1ca9", "1e3", ""])
def test_numbers_are_written_in_plain_digits(text: str) -> None:
    with pytest.raises(ConfigurationError, match="port must be a whole number"):
        load_settings(["--port", text], {})
    with pytest.raises(ConfigurationError, match="min_cleanable_dirty_ratio must be a number"):
        load_settings(["--min-cleanable-dirty-ratio", "\u0660.\u0665"], {})


def test_with_files_enough_the_settings_stay() -> None:
    assert fit_open_files(Settings(), 1_048_576) == (Settings(), "")


def test_every_setting_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_settings(["--help"], {})
    text = capsys.readouterr().out
    for name in Settings.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text


def test_keywords_are_checked_too() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'port'"):
        settings_from({"prot": 1})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metadata": "zookeeper://a:1/x"}, "does not begin with etcd://.*it can also be 'local'"),
        ({"metadata": ""}, "it can be 'local' or a URL"),
        ({"serve_metadata": "7340"}, "serve_metadata: '7340' is not HOST:PORT"),
        ({"metadata": "etcd://a:1/x", "serve_metadata": "a:2"}, "serve_metadata offers the local store"),
        ({"metadata": "etcd://a:1/x", "host": "0.0.0.0"}, "set advertised_host"),
        ({"serve_metadata": "a:2", "host": "::"}, "set advertised_host"),
        ({"serve_metadata": "a:2", "kafka_port": 9092, "kafka_host": "0.0.0.0"}, "set kafka_advertised_host"),
        ({"node_session_ms": 1_000}, "it must be from 2000 to 600000"),
    ],
)
def test_settings_of_a_cluster_are_looked_at(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings_from(values)


def test_a_node_is_alone_unless_it_shares_metadata() -> None:
    assert settings_from({}).is_standalone
    assert settings_from({"host": "0.0.0.0"}).is_standalone  # its clients are told the address that they reached
    assert not settings_from({"serve_metadata": "127.0.0.1:7340"}).is_standalone
    assert not settings_from({"metadata": "etcd://a:1/x", "host": "0.0.0.0", "advertised_host": "n1"}).is_standalone
