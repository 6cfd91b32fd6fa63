"""The driver that the Spark adversary kills: one JVM, which runs the queries it is told of.

Each line of standard input is a query as JSON (`spark_adversary.Command`), and each line of output
that begins with `ANSWER` says how it ended: an empty text, or the error.
"""

import json
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import col, crc32, lit, when

from hightide.spark import session, started

SHAPES = {
    "plain": lambda frame, count: frame,
    "round robin": lambda frame, count: frame.repartition(count),
    "by value": lambda frame, count: frame.repartition(col("value")),
    "by value, counted": lambda frame, count: frame.repartition(count, col("value")),
    "coalesced": lambda frame, count: frame.coalesce(count),
}


def source(spark, way, command):
    if command["files"]:
        text = spark.readStream.format("text").load(command["files"])
        return text.selectExpr("cast(null as binary) key", "cast(value as binary) value")
    reader = spark.readStream.format("hightide").options(**way)
    return reader.options(**command["source"]).load().select("key", "value")


def query(frame, way, command):
    """The query: one sink, or a function that writes to each of them."""

    def told(writer, sink):
        return writer.format("hightide").options(**way).options(**sink)

    def each(rows, batch):
        for sink in command["sinks"]:
            told(rows.write, sink).mode("append").save()

    if command["fans_out"]:
        writer = frame.writeStream.foreachBatch(each)
    else:
        (sink,) = command["sinks"]
        writer = told(frame.writeStream, sink)
    writer = writer.option("checkpointLocation", command["checkpoint"])
    return started(writer.trigger(availableNow=True))


def run(spark, way, command):
    for name, value in command["conf"].items():
        spark.conf.set(name, value)
    shape, count = command["shape"]
    frame = SHAPES[shape](source(spark, way, command), count)
    if topics := command["by_topic"]:
        is_first = crc32("value") % 2 == lit(0)
        frame = frame.withColumn("topic", when(is_first, topics[0]).otherwise(topics[1]))
    query(frame, way, command).awaitTermination()


def main(way):
    way = json.loads(way)
    spark = master = None
    for line in sys.stdin:
        command = json.loads(line)
        if master != command["master"]:
            if spark is not None:
                spark.stop()
            master = command["master"]
            spark = session("adversary", master)
            spark.sparkContext.setLogLevel("OFF")
        try:
            run(spark, way, command)
            error = ""
        except StreamingQueryException as failure:
            error = str(failure)
        print("ANSWER", json.dumps(error), flush=True)


main(*sys.argv[1:])
