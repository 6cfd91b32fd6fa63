"""Apache Kafka and hightide side by side: the same work on both, in turns, on this machine.

`rounds.py` says what is done, `lines.py` what is told of it. A cluster is of processes that this
program started (`kafka_nodes.py`, `hightide_nodes.py`); each workload is a client process of its
own (`client.py`), so that what a client needs to start is not in its figures.
"""
