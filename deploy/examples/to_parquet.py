"""A topic of JSON to Parquet: `python to_parquet.py TOPIC DIRECTORY`.

Run it again, and it goes on where it was; each record is in the files once.
"""

import os
import sys

from hightide.spark import session

topic, directory = sys.argv[1:]
spark = session("to-parquet")
query = (
    spark.readStream.format("hightide")
    .option("bootstrap.servers", os.environ.get("HIGHTIDE_BOOTSTRAP", "127.0.0.1:19092"))
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr(
        "from_json(cast(value AS string), 'customer string, item string, amount int') AS row",
        "timestamp",
    )
    .selectExpr("row.*", "timestamp")
    .writeStream.format("parquet")
    .option("path", directory)
    .option("checkpointLocation", f"{directory}-checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(f"{spark.read.parquet(directory).count()} rows are in {directory}")
spark.stop()
