"""Every API that is offered, by its number."""

from __future__ import annotations

from hightide_broker.kafka import (
    access_table,
    admin_table,
    cluster_table,
    groups_table,
    records_table,
)
from hightide_broker.kafka.fields import KafkaApi

API_BY_KEY: dict[int, KafkaApi] = {
    api.key: api
    for table in (records_table, groups_table, cluster_table, admin_table, access_table)
    for api in table.APIS
}
