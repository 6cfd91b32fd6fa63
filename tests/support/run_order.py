"""In which order the files of tests are run, so that a whole run is as short as the machine allows.

No test lives here. Files are handed out to five workers whole, in this order; two cores are busy
as long as some of the five compute while others wait for processes and clocks.
"""

from itertools import islice

# Files whose tests share what is made once in a process: a Spark session, which is warm once it has
# been started; the syntax trees of all files.
TOGETHER = (
    (
        "test_spark_pipeline.py",
        "test_spark_losses.py",
        "test_spark_sources.py",
        "test_spark_tls.py",
        "test_spark.py",
        "test_spark_sink_queries.py",
        "test_spark_streaming.py",
        "test_spark_extremes.py",
        "test_spark_filters.py",
    ),
    ("test_tidy.py", "test_security_rules.py", "test_words.py"),
)
# What takes long and keeps cores busy.
BUSY = (
    "test_mutants.py",
    "test_replication_mutants.py",
    "test_spark_adversary.py",
    "test_spark_cluster.py",
    "test_demo.py",
    "test_attacks.py",
    "test_disk_mutants.py",
    "test_quorum_storms.py",
    "test_replicated.py",
    "test_simulation.py",
    "test_server.py",
)
# What takes long and waits for most of it: the longest first, as each that begins late is a tail.
WAITING = (
    "test_alerts_fire.py",
    "test_console_browser.py",
    "test_lost_disks_live.py",
    "test_cli_secrets.py",
    "test_cli_bench_clusters.py",
    "test_docs.py",
    "test_lost_voters_live.py",
    "test_cli_bench.py",
    "test_cluster_live.py",
    "test_strangers_live.py",
    "test_secure_live.py",
    "test_quota_live.py",
    "test_kill.py",
    "test_cli_live.py",
    "test_chaos_live.py",
    "test_console_live.py",
    "test_cli_secure.py",
    "test_examples.py",
    "test_cli_replicas.py",
    "test_readme.py",
    "test_cli_leaderless.py",
    "test_cli_quorum.py",
    "test_cli_stops.py",
    "test_cli_log.py",
    "test_cli_trace.py",
    "test_cli_groups.py",
    "test_cli_tables.py",
    "test_cluster_file.py",
)
BETWEEN = 8
"""So many short files are begun between two that wait, once the long ones are under way."""


def in_order(names):
    """The names of files, each once: those that share something, long ones of both kinds in turns,
    and then the others with what is left of those that wait between them."""
    asked = dict.fromkeys(names)
    shared = [name for group in TOGETHER for name in group if name in asked]
    busy = [name for name in BUSY if name in asked]
    waiting = [name for name in WAITING if name in asked]
    others = [name for name in asked if name not in (*shared, *busy, *waiting)]
    rest, order = iter(others), shared
    for number, name in enumerate(waiting):
        order.append(name)
        order += busy[number : number + 1] or islice(rest, BETWEEN)
    return [*order, *busy[len(waiting) :], *rest]


def group_of(path):
    """Files of one group are run by one process: by the first of its name."""
    return next((names[0] for names in TOGETHER if path.name in names), path.name)
