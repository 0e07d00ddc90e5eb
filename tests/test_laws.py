"""The laws of the house, held by reading its source: walls between packages, purity of the cores, size, loose ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages import REQUESTS

ROOT = Path(__file__).parent.parent
PACKAGES = ("protocol", "coordinator", "client")

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 60

WALLS = {
    "protocol": {
        "client",
        "coordinator",
        "structlog",
        "uvloop",
        "asyncio",
        "os",
        "socket",
        "time",
        "random",
        "threading",
    },
    "coordinator": {"client"},
    "client": {"coordinator"},
}
"""What the modules of each package must not import."""

CLIENT_ROOMS = (
    *("types", "transport", "assignors", "transactions", "producer", "group", "consumer", "admin", "spark"),
    *("bench", "demo", "cli"),
)
"""From the bottom to the top."""

_IMPURE = {"asyncio", "os", "socket", "time", "random", "threading", "uuid", "secrets", "structlog", "pathlib"}
_PRODUCER = [
    f"client/producer/{name}.py" for name in ("core", "partition_queue", "produce_request", "sequences", "batch")
]
_SERVER = [f"coordinator/server/{name}.py" for name in ("server_connection", "native_codec", "budget", "errors_within")]
_RUNTIME = [f"coordinator/runtime/{name}.py" for name in ("admission", "held_commits", "effects", "core", "unfinished")]
_LOG_CORES = (
    *("producers", "transactions", "compaction", "retention", "index", "aborted", "config", "errors"),
    "leader_epochs",
)
_LOG = [f"coordinator/log/{name}.py" for name in _LOG_CORES]
_METADATA = [
    f"coordinator/metadata/{name}.py"
    for name in ("authority", "keys", "mirror", "partitions", "urls", "served/messages")
]
_CONTROLLER = [f"coordinator/controller/{name}.py" for name in ("core", "placement", "writes")]
_REPLICATION = [
    f"coordinator/replication/{name}.py"
    for name in ("fetch", "follower", "leader", "log", "partition", "proposals", "sessions", "throttle", "watermarks")
]
_CLUSTER = (*_REPLICATION, *_CONTROLLER, "coordinator/nodes/cleanliness.py", *_METADATA)
PURE = dict.fromkeys(
    (
        "coordinator/groups",
        "coordinator/transactions",
        *_CLUSTER,
        *_RUNTIME,
        "client/assignors",
        *_PRODUCER,
        "client/transactions/ending.py",
        "client/consumer/offsets_in_work.py",
        *_SERVER,
        *_LOG,
        "coordinator/kafka/fetch_sessions.py",
        "coordinator/histogram.py",
        "protocol",
    ),
    _IMPURE,
)
"""Cores, and what they are given: no I/O, clock, randomness or tasks."""

ROOMS = {
    "filesystem": {"histogram", "log_output"},
    "log": {"filesystem", "log_output"},
    "logs": {"clock", "filesystem", "log", "log_output", "metadata"},
    "runtime": {"clock", "log", "log_output", "logs", "metadata", "nodes"},
    "groups": {"histogram", "runtime"},
    "transactions": {"runtime"},
    "replication": {"controller", "filesystem", "log", "log_output", "logs", "metadata", "nodes"},
    "controller": {"clock", "log_output", "metadata", "nodes", "replication"},
    "inspection": {
        *("filesystem", "groups", "log", "log_output", "logs", "metadata", "nodes", "replication", "transactions"),
    },
    "metrics": {
        *("filesystem", "group_coordinator", "groups", "histogram", "logs", "metadata", "runtime", "server"),
        *("transaction_coordinator", "transactions"),
    },
    "nodes": {"clock", "filesystem", "log", "log_output", "logs", "metadata", "replication"},
}
"""What the rooms of the daemon may import of each other."""

TOP_LEVEL = {
    *("pyproject.toml", "README.md", "coordinator", "client", "protocol", "tests", "docker-compose.yml"),
    *("LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "docs", ".ci", ".gitignore"),
}

BANNED_CALLS = {
    "time.time": "take the wall clock from a constructor parameter",
    "time.monotonic": "use the running loop's time()",
    "asyncio.get_event_loop": "use asyncio.get_running_loop()",
    "random.random": "take a random.Random as a parameter",
    "random.choice": "take a random.Random as a parameter",
    "random.randint": "take a random.Random as a parameter",
}


DISTRIBUTION = ROOT / "client" / "distribution"
"""Packages of the top level of an installation: they hand on what client and coordinator have, and may import both."""


def modules(package: str) -> Iterator[Path]:
    path = ROOT / package
    yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def everything() -> list[Path]:
    return [path for package in PACKAGES for path in modules(package)]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno} imports relatively: name the package"
            yield node.lineno, node.module


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_walls_between_packages_stand(package: str) -> None:
    crossed = [
        f"{relative(path)}:{line} imports {name}"
        for path in modules(package)
        if not path.is_relative_to(DISTRIBUTION)
        for line, name in imported(path)
        if name.split(".")[0] in WALLS[package]
    ]
    assert not crossed


def test_a_room_of_the_client_imports_from_the_rooms_above_it_only() -> None:
    order = {room: place for place, room in enumerate(CLIENT_ROOMS)}
    upwards = [
        f"{relative(path)}:{line} imports {name}"
        for room in CLIENT_ROOMS
        for path in modules(f"client/{room}")
        for line, name in imported(path)
        if name.startswith("client.") and order.get(name.split(".")[1], -1) > order[room]
        if not {room, name.split(".")[1]} <= {"bench", "demo", "cli"}  # the command, and what its commands run
    ]
    assert not upwards


@pytest.mark.parametrize("folder", PURE)
def test_cores_are_pure(folder: str) -> None:
    impure = [
        f"{relative(path)}:{line} imports {name}"
        for path in modules(folder)
        for line, name in imported(path)
        if name.split(".")[0] in PURE[folder]
    ]
    assert not impure


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_the_rooms_below_them(room: str) -> None:
    crossed = [
        f"{relative(path)}:{line} imports {name}"
        for path in modules(f"coordinator/{room}")
        for line, name in imported(path)
        if name.split(".")[0] == "coordinator" and name.split(".")[1] not in ROOMS[room] | {room}
    ]
    assert not crossed


def test_cores_use_no_coroutines() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for folder in PURE
        for path in modules(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await)
    ]
    assert not found


def test_only_the_filesystem_touches_files_in_the_daemon() -> None:
    allowed = {
        "coordinator/filesystem/files.py",
        "coordinator/__main__.py",
        "coordinator/embedded.py",
        "coordinator/cluster.py",
        "coordinator/config.py",
    }
    allowed |= {"coordinator/worker.py", "coordinator/workers.py"}  # processes, their environment and directories
    allowed.add("coordinator/log_writer.py")  # standard error, of a daemon that is a process
    found = [
        f"{relative(path)}:{line} imports {name}"
        for path in modules("coordinator")
        for line, name in imported(path)
        if relative(path) not in allowed
        and name.split(".")[0] in {"os", "pathlib", "shutil", "tempfile", "fcntl", "io"}
    ]
    assert not found


def test_modules_and_functions_stay_small() -> None:
    large: list[str] = []
    for path in everything():
        source = path.read_text(encoding="utf-8")
        lines = source.count("\n")
        if lines > MAX_MODULE_LINES:
            large.append(f"{relative(path)} has {lines} lines, at most {MAX_MODULE_LINES}")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    large.append(f"{relative(path)}:{node.lineno} {node.name} has {length} lines")
    assert not large


def test_public_things_say_what_they_promise() -> None:
    silent = [
        f"{relative(path)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', 'module')}"
        for path in everything()
        for node in _public_definitions(ast.parse(path.read_text(encoding="utf-8")))
        if ast.get_docstring(node) is None
    ]
    assert not silent


def _public_definitions(
    tree: ast.Module,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    if tree.body:
        yield tree
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                        yield member


def test_banned_calls_name_their_replacement() -> None:
    found = []
    for path in everything():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in BANNED_CALLS:
                    found.append(f"{relative(path)}:{node.lineno} calls {name}: {BANNED_CALLS[name]}")
    assert not found


def test_no_loose_ends() -> None:
    words = ["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]
    found = [
        f"{relative(path)}:{number} {line.strip()}"
        for path in [*everything(), *modules("tests")]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if any(word in line for word in words)
    ]
    assert not found


def test_no_exception_is_swallowed_in_silence() -> None:
    found = []
    for path in everything():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and len(node.body) == 1 and isinstance(node.body[0], ast.Pass):
                kind = ast.unparse(node.type) if node.type else "everything"
                if kind in ("everything", "Exception", "BaseException"):
                    found.append(f"{relative(path)}:{node.lineno} swallows {kind}")
    assert not found


def test_no_module_is_called_after_nothing() -> None:
    assert not [
        relative(path)
        for path in everything()
        if path.stem in ("utils", "util", "helpers", "manager", "common", "misc")
    ]


def test_nothing_else_lies_at_the_top_level() -> None:
    ignored = {
        ".git",
        ".venv",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        "cohort-data",
        "dist",
        "build",
    }
    assert {path.name for path in ROOT.iterdir()} - ignored <= TOP_LEVEL


def test_every_package_ships_its_types() -> None:
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").exists()] == []


def test_each_api_key_has_a_handler_in_a_module_of_its_name() -> None:
    modules_of_keys = {
        path.stem for path in modules("coordinator/server/handlers") if "def handler(node" in path.read_text()
    }
    assert modules_of_keys == {request.api_key.name.lower() for request in REQUESTS.values()}
