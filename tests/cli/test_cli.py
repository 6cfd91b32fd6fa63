"""Goal: what the command line does before it meets a broker: help, hints, exit codes, formats.

Method: `main()` runs in this process with its own argv, and what it prints and its exit code are
read, as a shell would; what must hold in a fresh interpreter is asked of one. No broker is started.
"""

import importlib
import json
import os
import re
import socket
import subprocess
import sys
from typing import NamedTuple

import pytest

from hightide.protocol.errors import ApiError, ErrorCode, NobodyListens, RemoteProtocolError
from hightide_cli.failures import explain
from hightide_cli.main import COMMANDS, main
from hightide_cli.output import TellOnce


def spoken(each):
    """A command line as a test's name."""
    return " ".join(each) if isinstance(each, list | tuple) else None


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run `hightide WORDS…` in an empty directory, without HIGHTIDE_ variables but those given."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("HIGHTIDE_"):
            monkeypatch.delenv(name)

    def run(*words, **environment):
        monkeypatch.setattr(sys, "argv", ["hightide", *words])
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                main()
        printed = capsys.readouterr()
        return Ended(end.value.code, printed.out, printed.err)

    return run


@pytest.fixture
def nobody():
    """An address that refuses: its port is bound and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def every_command():
    """The words of each group, command and sub-command."""
    for name, (module, attribute, _) in COMMANDS.items():
        found = getattr(importlib.import_module(f"hightide_cli.{module}"), attribute)
        yield (name,)
        for inner in getattr(found, "commands", {}):
            yield (name, inner)


def every_leaf():
    words = list(every_command())
    groups = {pair[0] for pair in words if len(pair) == 2}
    return [each for each in words if len(each) == 2 or each[0] not in groups]


def modules_after(*calls):
    """The modules a fresh interpreter has loaded after these command lines, and what they print."""
    script = (
        "import sys\n"
        "from hightide_cli.main import main\n"
        f"for words in {[list(call) for call in calls]!r}:\n"
        "    sys.argv = ['hightide', *words]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, (words, end.code)\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(ended.stderr.split()), ended.stdout


# -- help ------------------------------------------------------------------------------------------


def test_help_names_every_command_and_loads_nothing_heavy():
    loaded, printed = modules_after(["--help"])
    assert "hightide_cli" in loaded
    assert not loaded & {"trio", "rich", "hightide", "hightide_broker", "msgspec", "pyspark"}
    for name in COMMANDS:
        assert f"  {name} " in printed


def test_the_help_of_a_command_needs_neither_an_event_loop_nor_tables():
    loaded, printed = modules_after(*[[*words, "--help"] for words in every_command()])
    assert printed.count("Usage:") == len(list(every_command()))
    assert not loaded & {"trio", "rich", "pyspark", "pyarrow"}


@pytest.mark.parametrize("words", every_leaf(), ids=spoken)
def test_the_help_of_every_command_shows_an_example(command, words):
    ended = command(*words, "--help")
    assert ended.code == 0
    _, found, examples = ended.out.partition("Example")
    assert found, "no example"
    assert f"hightide {' '.join(words)}" in " ".join(examples.split())


def test_the_version_is_that_of_the_distribution(command):
    from importlib.metadata import version

    assert command("--version").out.strip() == f"hightide, version {version('hightide')}"


# -- hints and usage -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["topcis", "list"], "'topics'"),
        (["prodcue", "t"], "'produce'"),
        (["topics", "craete", "t"], "'create'"),
        (["storage", "frmat"], "'format'"),
        (["log", "verfy", "."], "'verify'"),
        (["server", "start", "--set", "lisen.port=1"], "listen.port"),
        (["server", "start", "--check-config", "--set", "log.retention.m=1"], "log.retention.ms"),
        (["up", "--detach", "--set", "flsh=synced"], "flush"),
        (["topics", "list", "--ouptut", "json"], "'--output'"),
    ],
    ids=spoken,
)
def test_a_slip_of_the_pen_is_a_usage_error_that_names_what_was_meant(command, words, meant):
    ended = command(*words)
    assert ended.code == 2
    assert ended.out == ""
    assert f"did you mean {meant}" in ended.err.lower()


def test_a_word_that_is_near_nothing_gets_no_hint(command):
    ended = command("zzzzzz")
    assert ended.code == 2
    assert "'zzzzzz'" in ended.err
    assert "mean" not in ended.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["consume", "t", "--from", "middle"], "'middle'"),
        (["consume", "t", "--from", "@yesterday"], "'yesterday'"),
        (["consume", "t", "--from", "+5"], "'+5'"),
        (["consume", "t", "-c", "0"], "-c 0"),
        (["consume", "t", "-J", "-f", "%v"], "not both"),
        (["consume", "t", "-f", "%v %q"], "%q"),
        (["consume", "t", "-p", "one"], "'one'"),
        (["consume"], "TOPICS"),
        (["produce", "t", "-H", "name"], "'name'"),
        (["produce", "t", "--acks", "2"], "'2'"),
        (["produce", "t", "no-such-file"], "no-such-file"),
        (["topics", "create", "t", "--config", "flush"], "'flush'"),
        (["topics", "alter", "t"], "nothing to alter"),
        (["topics", "alter", "t", "--config", "flush"], "'flush'"),
        (["topics", "offsets", "t", "--at", "noon"], "'noon'"),
        (["configs", "alter", "topic", "t"], "nothing to alter"),
        (["configs", "alter", "topic", "t", "--set", "flush"], "'flush'"),
        (["topics", "delete", "t"], "--yes"),
        (["topics", "delete", "__consumer_offsets", "--yes"], "--internal __consumer_offsets"),
        (["topics", "delete", "__mine", "--yes", "--internal", "__other"], "--internal __mine"),
        (["topics", "delete", "__mine", "--internal", "__mine"], "--yes"),
        (["topics", "list", "-o", "xml"], "'xml'"),
        (["topics", "list", "--timeout", "0"], "0"),
        (["topics", "list", "--timeout", "nan"], "'nan' is no number of seconds"),
        (["topics", "list", "-b", "127.0.0.1:port"], "127.0.0.1:port"),
    ],
    ids=spoken,
)
def test_a_usage_error_is_told_before_any_broker_is_asked(command, nobody, words, named):
    patience = [] if "--timeout" in words else ["--timeout", "0.2"]
    ended = command(*words, *patience, HIGHTIDE_BOOTSTRAP=nobody)
    assert ended.code == 2
    assert ended.out == ""
    assert named in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("words", [["-n", "0"], ["--topic", "t:x"], ["--topic", ":3"]], ids=spoken)
def test_up_refuses_what_it_cannot_do_and_leaves_nothing_behind(command, tmp_path, words):
    ended = command("up", "--detach", *words)
    assert ended.code == 2
    assert words[1] in ended.err
    assert not list(tmp_path.iterdir())


# -- exit codes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["topics", "list"],
        ["topics", "create", "t"],
        ["topics", "delete", "t", "--yes"],
        ["topics", "offsets", "t"],
        ["configs", "describe", "topic", "t"],
        ["consume", "t", "-e"],
    ],
    ids=spoken,
)
def test_nobody_at_the_address_is_exit_3_and_names_it(command, nobody, words):
    ended = command(*words, "-b", nobody, "--timeout", "0.2")
    assert ended.code == 3
    assert ended.out == ""
    assert nobody in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ErrorCode.INVALID_TOPIC, 1),
        (ErrorCode.INVALID_CONFIG, 2),
        (ErrorCode.REQUEST_TIMED_OUT, 3),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 4),
        (ErrorCode.TOPIC_ALREADY_EXISTS, 5),
        (ErrorCode.CORRUPT_MESSAGE, 7),
    ],
)
def test_what_a_cluster_answers_decides_the_exit_code(error, code):
    message, found = explain(ApiError(error, "why"))
    assert found == code
    assert "why" in message


@pytest.mark.parametrize(
    ("missing", "extra"),
    [
        ("pyspark.sql.datasource", "spark"),
        ("pyarrow", "spark"),
        ("cryptography.x509", "secure"),
        ("starlette", "console"),
        ("matplotlib", "demo"),
    ],
)
def test_what_is_not_installed_is_told_by_the_extra_that_brings_it(missing, extra):
    message, code = explain(ModuleNotFoundError(f"No module named {missing!r}", name=missing))
    assert (message.partition(": ")[2], code) == (f"pip install 'hightide[{extra}]'", 1)


def test_a_module_that_is_in_no_extra_is_a_bug_of_ours():
    assert explain(ModuleNotFoundError("No module named 'hightyde'", name="hightyde"))[0] is None


def test_who_speaks_plainly_where_tls_is_spoken_is_told_what_knows_the_way_in():
    error = RemoteProtocolError("frame of 5 bytes; the peer seems to speak TLS: no")
    assert "--config client.toml" in explain(error)[0]
    assert "client.toml" not in explain(RemoteProtocolError("frame of 0 bytes"))[0]


def test_who_waits_for_a_broker_is_told_at_once_what_may_be_done(capsys):
    TellOnce()(NobodyListens("no connection: Connection refused"))
    assert "hightide up starts one" in capsys.readouterr().err


def test_who_waits_for_an_answer_is_told_whose(capsys):
    TellOnce().silent("127.0.0.1:9092", 13 / 3)
    told = "broker 127.0.0.1:9092 has said nothing for 5 s; it is given 4.33 s\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (OSError("cannot listen on h:1: in use"), "cannot listen on h:1: in use"),
    ],
)
def test_what_the_system_refuses_is_told_in_its_words_without_a_number(error, told):
    assert explain(error) == (told, 1)


def test_a_bug_of_ours_keeps_its_traceback():
    assert explain(KeyError("ours"))[0] is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["ps", "-o", "json"], 0),
        (["down"], 0),
        (["logs"], 4),
        (["log", "verify", "."], 4),
        (["log", "dump", "."], 4),
        (["log", "verify", "nowhere"], 2),
        (["storage", "info", "--set", "log.dirs=nowhere"], 4),
    ],
    ids=spoken,
)
def test_a_directory_without_a_cluster_has_an_exit_code_of_its_own(command, words, code):
    ended = command(*words)
    assert ended.code == code
    assert ended.out == ("[]\n" if words[0] == "ps" else "")


# -- storage ---------------------------------------------------------------------------------------


def test_a_fresh_cluster_id_is_22_letters_and_never_the_same(command):
    ids = {command("storage", "id").out for _ in range(5)}
    assert len(ids) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}\n", one) for one in ids)


@pytest.mark.parametrize("name", ["a b", "a\nnode.id=2", "\u00e9", "x" * 65])
def test_a_cluster_id_that_is_no_name_is_refused_and_nothing_is_made(command, name, tmp_path):
    where = tmp_path / "data"
    ended = command("storage", "format", "--set", f"log.dirs={where}", "--cluster-id", name)
    assert ended.code == 2
    assert "expected at most 64 letters" in ended.err
    assert not where.exists()


def test_an_id_that_is_not_the_configurations_is_refused_and_nothing_is_made(command, tmp_path):
    where = tmp_path / "data"
    words = ["--set", f"log.dirs={where}", "--set", "cluster.id=ours", "--cluster-id", "theirs"]
    ended = command("storage", "format", *words)
    assert ended.code == 2
    assert "--cluster-id theirs, and the configuration says ours" in ended.err
    assert not where.exists()


def test_a_formatted_directory_says_whose_it_is_and_may_be_formatted_again(command):
    name = command("storage", "id").out.strip()
    for _ in range(2):
        ended = command("storage", "format", "--set", "log.dirs=d", "--cluster-id", name)
        assert ended.code == 0
        assert name in ended.err
    ended = command("storage", "info", "--set", "log.dirs=d", "-o", "json")
    facts = json.loads(ended.out)
    assert len(facts.pop("directory_id")) == 22
    assert facts == {
        "directory": "d",
        "cluster_id": name,
        "node_id": 1,
        "joining": False,
        "clean_shutdown": False,
    }
    assert f"cluster_id: {name}\n" in command("storage", "info", "--set", "log.dirs=d").out


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (["storage", "format", "--cluster-id", "theirs"], ("ours", "theirs")),
        (
            ["storage", "format", "--cluster-id", "ours", "--set", "node.id=9"],
            ("node 1", "node is 9"),
        ),
        (["server", "start", "--set", "cluster.id=theirs"], ("ours", "theirs")),
        (["server", "start", "--set", "node.id=9"], ("node 1", "node is 9")),
    ],
    ids=spoken,
)
def test_a_directory_of_somebody_else_is_a_conflict_that_names_both(command, words, both):
    where = ["--set", "log.dirs=d", "--set", "listen.port=0"]
    assert command("storage", "format", *where, "--cluster-id", "ours").code == 0
    ended = command(*words, *where)
    assert ended.code == 5
    for one in ("d belongs to", *both):
        assert one in ended.err
    kept = json.loads(command("storage", "info", *where, "-o", "json").out)
    assert (kept["cluster_id"], kept["node_id"]) == ("ours", 1)


def test_a_damaged_description_is_told_and_not_written_over(command, tmp_path):
    meta = tmp_path / "d" / "meta.properties"
    meta.parent.mkdir()
    meta.write_bytes(b"version=1\nnode.id=\xff\n")
    ended = command("storage", "format", "--set", "log.dirs=d", "--cluster-id", "ours")
    assert ended.code == 7
    assert "meta.properties" in ended.err
    assert meta.read_bytes() == b"version=1\nnode.id=\xff\n"


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "toml",
    ['listen.port = 0\nlog.retention.ms = "7d"\n', "[listen]\nport = 0\n[log]\n'retention.ms' = 5"],
    ids=["dots", "tables"],
)
def test_a_good_configuration_is_fine_and_starts_nothing(command, tmp_path, toml):
    (tmp_path / "broker.toml").write_text(toml)
    ended = command("server", "start", "-c", "broker.toml", "--check-config")
    assert ended.code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["broker.toml"]


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("listen.port = 70000\n", ["listen.port", "70000"]),
        ("lisen.port = 1\n", ["lisen.port", "did you mean listen.port"]),
        ("[log.retention]\nmss = 1\n", ["log.retention.mss", "did you mean log.retention.ms"]),
        ("flush = 'never'\n", ["flush", "never", "synced"]),
        ("listen.port = [1]\n", ["listen.port", "is a list"]),
        ("listen.port 1\n", ["TOML"]),
        ("log.retention.ms = '7 weeks'\n", ["log.retention.ms", "7 weeks"]),
    ],
)
def test_a_bad_file_is_a_usage_error_that_names_key_and_value(command, tmp_path, toml, named):
    (tmp_path / "broker.toml").write_text(toml)
    ended = command("server", "start", "-c", "broker.toml", "--check-config")
    assert ended.code == 2
    for one in named:
        assert one in ended.err


def test_set_wins_over_the_environment_and_that_over_the_file(command, tmp_path):
    (tmp_path / "broker.toml").write_text("node.id = 3\nlog.dirs = 'd'\n")

    def owner(*words, **environment):
        words = ("storage", "format", "-c", "broker.toml", "--cluster-id", "ours", *words)
        ended = command(*words, **environment)
        (tmp_path / "d" / "meta.properties").unlink()
        return ended.err.split()[4]

    assert owner() == "3"
    assert owner(HIGHTIDE_NODE_ID="4") == "4"
    assert owner("--set", "node.id=5", HIGHTIDE_NODE_ID="4") == "5"
    assert owner("--set", "node.id=5", "--set", "node.id=6") == "6"


@pytest.mark.parametrize("bad", [0, 1, 2], ids=["file", "environment", "set"])
def test_only_the_value_in_force_is_judged(command, tmp_path, bad):
    values = ["1", "1", "1"]
    values[bad] = "wrong"
    (tmp_path / "broker.toml").write_text(f"node.id = '{values[0]}'\n")
    words = ["server", "start", "-c", "broker.toml", "--check-config"]
    ended = command(*words, "--set", f"node.id={values[2]}", HIGHTIDE_NODE_ID=values[1])
    assert ended.code == (2 if bad == 2 else 0)
    assert ("'wrong'" in ended.err) == (bad == 2)
