"""What starts slowly on a busy machine: a source that comes up too late for Spark is started again,
and nothing else is; and its Python does not compile all of Spark's first.

Method: writers and queries that the test plays; what Spark says of a source that took more than its
10 seconds is what it said on such a machine. The script that starts Python is run.
"""

import gc
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import PATIENCE_S
from tries import few

pytest.importorskip("pyspark")

import pyspark
from pyspark import daemon
from pyspark.accumulators import AccumulatorTCPServer

from hightide.spark import builder, endings, started
from hightide.spark.format import HightideDataSource
from hightide.spark.pipeline import PipelineFailed, Running
from hightide.spark.starts import STARTS_MAX
from hightide.spark.workers import worker_python

TOO_LATE = "[STREAM_FAILED] … Python worker failed to connect back."
LOST = "hightide.spark.offsets.DataLoss: t-0 begins at 5"


MESSAGES = ["Initializing StreamExecution", "Initializing sources", "Initializing sources"]


class Query:
    """A query that initializes for some looks at it, and then works or has failed."""

    def __init__(self, error):
        self._error, self._looks = error, len(MESSAGES) + 1

    @property
    def status(self):
        self._looks -= 1
        return {"message": MESSAGES[-self._looks] if self._looks > 0 else "Waiting"}

    @property
    def isActive(self):
        return self._looks > 0 or self._error is None

    def exception(self):
        assert self._looks == 0, "asked before its sources were up"
        return self._error and RuntimeError(self._error)


def writer(*errors):
    """A writer whose queries end in these ways, one after the other."""
    queries = []

    def start():
        queries.append(Query(errors[min(len(queries), len(errors) - 1)]))
        return queries[-1]

    return SimpleNamespace(start=start, queries=queries)


@pytest.mark.parametrize("error", [None, LOST])
def test_what_comes_up_in_time_or_fails_otherwise_is_started_once(error):
    played = writer(error)
    assert started(played) is played.queries[0]
    assert len(played.queries) == 1


def test_what_comes_up_too_late_is_started_until_it_does_not():
    played = writer(TOO_LATE, TOO_LATE, None)
    assert started(played) is played.queries[2]
    assert len(played.queries) == 3


def test_what_never_comes_up_is_given_back_with_its_error_and_the_pipeline_says_what_to_do():
    played = writer(TOO_LATE)
    query = started(played)
    assert len(played.queries) == STARTS_MAX
    with pytest.raises(PipelineFailed, match=r"Spark has no setting .* \(--master local\[1\]\)"):
        Running({"rows": query}).check()


# -- its Python ------------------------------------------------------------------------------------

INSTALLED = Path(pyspark.__file__).parent
ZIP = INSTALLED / "python" / "lib" / "pyspark.zip"
TELL = "import os, sys, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__, *sys.argv[1:])"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*command, **variables):
    """How a program ended that Spark's own variables do not reach."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    return subprocess.run(
        command,
        env={**kept, "PYTHONPATH": "", "PYTHON_UNIX_DOMAIN_ENABLED": "", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def told(python, *path):
    return run(python, "-c", TELL, "*", "a b", PYTHONPATH=":".join(map(str, path))).stdout.strip()


def test_a_worker_takes_what_is_installed_and_not_what_has_to_be_compiled(cache, tmp_path):
    mine, link = tmp_path / "my * code", tmp_path / "link.zip"
    mine.mkdir()
    link.symlink_to(ZIP)
    assert f" {ZIP}/pyspark/" in told(sys.executable, ZIP), "as Spark itself would have it"
    found = told(worker_python(), ZIP, mine, link, cache)
    assert found == f"{mine}:{cache} {pyspark.__file__} * a b"
    assert told(worker_python(), ZIP) == f"{pyspark.__file__} * a b"
    assert len([*(cache / "hightide").iterdir()]) == 1, "made once"


def test_the_daemon_of_workers_is_one_that_ends_them_without_a_word(cache, tmp_path, monkeypatch):
    told = "import os, sys; print(sys.orig_argv[1:], flush=True); os._exit(0)"
    (tmp_path / "sitecustomize.py").write_text(told)
    script = Path(worker_python())
    lines = script.read_text().replace('export PYTHONPATH="$left"', f"export PYTHONPATH={tmp_path}")
    script.write_text(lines)
    for asked, started_as in [
        (
            ["-m", "pyspark.daemon", "pyspark.worker"],
            ["-m", "hightide.spark.endings", "pyspark.worker"],
        ),
        (["-m", "json.tool", "--help"], ["-m", "json.tool", "--help"]),
    ]:
        assert run(script, *asked).stdout == f"{started_as}\n"


def test_where_the_script_cannot_be_or_the_jvm_is_not_ours_this_python_is_taken(cache, monkeypatch):
    cache.write_text("no directory")
    assert worker_python() == sys.executable
    cache.unlink()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert worker_python() == sys.executable
    assert not cache.exists()


# -- how its processes end -------------------------------------------------------------------------

LEFT = """
from hightide.spark.source import HightideStreamReader
reader = HightideStreamReader.__new__(HightideStreamReader)
try:
    try:
        raise {under_way}
    finally:
        reader.stop()
except {under_way}:
    raise {last}
"""


@pytest.mark.parametrize(
    ("under_way", "last", "told"),
    few(
        [
            ("EOFError", "BrokenPipeError", ""),
            ("ConnectionResetError", "BrokenPipeError", ""),
            ("EOFError", "KeyError", "KeyError"),
            ("ValueError", "BrokenPipeError", "BrokenPipeError"),
        ],
        1,
    ),
)
def test_a_source_that_spark_has_left_says_nothing_of_its_closed_socket(under_way, last, told):
    """As `python_streaming_source_runner` does it, when it reads its next order and when it flushes
    what nobody reads."""
    done = run(sys.executable, "-c", LEFT.format(under_way=under_way, last=last))
    assert done.returncode == 1
    assert (done.stderr.splitlines() or [""])[-1] == told


@pytest.mark.parametrize("closed", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_socket_is_closed_ends_and_is_not_used_again(closed):
    def flush(sock, authenticated):
        raise closed

    assert endings.quiet(flush)(None, True) == 1
    assert endings.quiet(lambda sock, authenticated: 0)(None, True) == 0


def test_what_else_ends_a_worker_is_told():
    with pytest.raises(ZeroDivisionError):
        endings.quiet(lambda sock, authenticated: 1 // 0)(None, True)


def test_a_worker_goes_through_what_it_has_imported_after_its_first_task_alone(monkeypatch):
    """PySpark has it collect after each."""
    stays, left_alone = [], []

    def task(sock, authenticated):
        stays.extend([] for _ in range(1000))
        return 0

    def daemon_of_three_tasks():
        for _ in range(3):
            assert daemon.worker(None, True) == 0
            left_alone.append(gc.get_freeze_count())

    before = gc.get_freeze_count()
    monkeypatch.setattr(daemon, "worker", task)
    monkeypatch.setattr(daemon, "manager", daemon_of_three_tasks)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    try:
        endings._run_daemon()
    finally:
        gc.unfreeze()
        gc.freeze()  # as the tests' process has it
    first, *others = left_alone
    assert before < first >= max(others)


def test_what_is_printed_of_a_jvm_that_ends_is_news_until_this_process_was_told_to_stop(capsys):
    """A server of accumulators whose JVM is gone, and py4j, which logs by the root."""
    told = False
    handler = logging.StreamHandler(sys.stderr)

    def jvm_ends():
        server = AccumulatorTCPServer.__new__(AccumulatorTCPServer)
        record = logging.makeLogRecord({"msg": "while sending", "levelno": logging.ERROR})
        try:
            raise EOFError
        except EOFError:
            server.handle_error(None, ("there", 1))
        logging.getLogger().handle(record)
        said = capsys.readouterr().err
        return "EOFError" in said, "while sending" in said

    logging.getLogger().addHandler(handler)
    try:
        with endings.expecting_its_end(lambda: told):
            assert jvm_ends() == (True, True)
            told = True
            assert jvm_ends() == (False, False)
        assert jvm_ends() == (True, True)
    finally:
        logging.getLogger().removeHandler(handler)


# -- the format ------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [True, False])
def test_the_format_is_registered_where_spark_has_not_found_it(found):
    """Its one look for formats is in a Python that may come up too late."""
    asked, registered = [], []
    manager = SimpleNamespace(dataSourceExists=lambda name: asked.append(name) or found)
    state = SimpleNamespace(dataSourceManager=lambda: manager)
    spark = SimpleNamespace(
        _jsparkSession=SimpleNamespace(sessionState=lambda: state),
        dataSource=SimpleNamespace(register=registered.append),
    )
    builder._register(spark)
    assert asked == ["hightide"]
    assert registered == ([] if found else [HightideDataSource])


# -- what a session takes over ---------------------------------------------------------------------

OURS = "spark.driver.defaultJavaOptions"


@pytest.fixture
def no_logging(monkeypatch, tmp_path):
    """Nobody says how Spark is to log; the directory that its configuration is in."""
    for name in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("LOG4J_CONFIGURATION_FILE", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_our_logging_is_taken_where_nobody_says_another(no_logging, monkeypatch):
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC")
    (no_logging / "spark-defaults.conf").write_text("spark.ui.enabled false\n")
    option = builder._logging()[OURS]
    assert option.startswith("-Dlog4j2.configurationFile=file:///")
    assert option.endswith("/spark/log4j2.properties")


@pytest.mark.parametrize("name", ["log4j2.properties", "log4j2.xml", "spark-defaults.conf"])
def test_a_users_own_file_is_left_alone(no_logging, name):
    (no_logging / name).write_text(f"{OURS} -Dmine=1\n")
    assert builder._logging() == {}


@pytest.mark.parametrize(
    "name",
    ["SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "LOG4J_CONFIGURATION_FILE"],
)
def test_a_users_own_option_is_left_alone(no_logging, monkeypatch, name):
    monkeypatch.setenv(name, "-Dlog4j2.configurationFile=file:/mine")
    assert builder._logging() == {}


ASK = "import os, hightide.spark; print(os.environ.get('PYSPARK_PYTHON'))"


@pytest.mark.parametrize(
    ("first", "taken"),
    [("its own", None), ("another", sys.executable), ("none", sys.executable)],
)
def test_an_import_names_this_python_where_spark_would_take_another(tmp_path, first, taken):
    path = Path(sys.executable).parent if first == "its own" else tmp_path
    if first == "another":
        (tmp_path / "python3").symlink_to("/bin/sh")
    asked = run(sys.executable, "-c", ASK, PATH=str(path))
    assert asked.stdout.strip() == str(taken), asked.stderr
