"""# The guide

hightide is a small, real, replicated log: brokers in Python that keep Kafka's replication promises,
and a PySpark source and sink that read and write committed data.

| page | for whom |
|---|---|
| `guide.first_cluster` | who has ten minutes: a cluster, records, a broker that dies |
| `guide.replication` | who studies how Kafka replicates: the rules, each with a lesson to play |
| `guide.clients` | who writes Python: producer, consumer, admin, groups, errors |
| `guide.spark` | who writes PySpark: source, sink, pipeline, on one machine and on a cluster |
| `guide.operating` | who keeps it running: three hosts, upgrades, lost disks, full disks, logs |

The reference is `hightide`, with `hightide.blocking`, `hightide.testing` and `hightide.spark`.
"""
