"""Messages that change topics and settings, or tell of them, in the form of `fields.py`."""

from __future__ import annotations

from hightide_broker.kafka.fields import kafka_api

CREATE_TOPICS = kafka_api(
    19,
    "create_topics",
    2,
    7,
    flexible=5,
    request="""
topics []
  name string
  num_partitions int32
  replication_factor int16
  assignments []
    partition_index int32
    broker_ids []int32
  configs []
    name string
    value string ?
timeout_ms int32 =60000
validate_only bool =false
""",
    response="""
throttle_time_ms int32 =0
topics []
  name string
  topic_id uuid 7+
  error_code int16
  error_message string ? =""
  topic_config_error_code int16 5+ #0 =0
  num_partitions int32 5+ =-1
  replication_factor int16 5+ =-1
  configs [] 5+ ?
    name string
    value string ?
    read_only bool
    config_source int8 =-1
    is_sensitive bool
""",
)
DELETE_TOPICS = kafka_api(
    20,
    "delete_topics",
    1,
    6,
    flexible=4,
    request="""
topics [] 6+
  name string ? =null
  topic_id uuid
topic_names []string 1-5
timeout_ms int32
""",
    response="""
throttle_time_ms int32 =0
responses []
  name string ?6+
  topic_id uuid 6+
  error_code int16
  error_message string 5+ ? =null
""",
)
CREATE_PARTITIONS = kafka_api(
    37,
    "create_partitions",
    0,
    3,
    flexible=2,
    request="""
topics []
  name string
  count int32
  assignments [] ?
    broker_ids []int32
timeout_ms int32
validate_only bool
""",
    response="""
throttle_time_ms int32 =0
results []
  name string
  error_code int16
  error_message string ? =null
""",
)
DESCRIBE_CONFIGS = kafka_api(
    32,
    "describe_configs",
    1,
    4,
    flexible=4,
    request="""
resources []
  resource_type int8
  resource_name string
  configuration_keys []string ?
include_synonyms bool =false
include_documentation bool 3+ =false
""",
    response="""
throttle_time_ms int32 =0
results []
  error_code int16
  error_message string ?
  resource_type int8
  resource_name string
  configs []
    name string
    value string ?
    read_only bool
    config_source int8 =-1
    is_sensitive bool
    synonyms []
      name string
      value string ?
      source int8
    config_type int8 3+ =0
    documentation string 3+ ?
""",
)
LIST_CONFIG_RESOURCES = kafka_api(
    74,
    "list_config_resources",
    0,
    1,
    flexible=0,
    request="""
resource_types []int8 1+
""",
    response="""
throttle_time_ms int32 =0
error_code int16
config_resources []
  resource_name string
  resource_type int8 1+
""",
)
INCREMENTAL_ALTER_CONFIGS = kafka_api(
    44,
    "incremental_alter_configs",
    0,
    1,
    flexible=1,
    request="""
resources []
  resource_type int8
  resource_name string
  configs []
    name string
    config_operation int8
    value string ?
validate_only bool
""",
    response="""
throttle_time_ms int32 =0
responses []
  error_code int16
  error_message string ?
  resource_type int8
  resource_name string
""",
)
ALTER_CONFIGS = kafka_api(
    33,
    "alter_configs",
    0,
    2,
    flexible=2,
    request="""
resources []
  resource_type int8
  resource_name string
  configs []
    name string
    value string ?
validate_only bool
""",
    response="""
throttle_time_ms int32 =0
responses []
  error_code int16
  error_message string ?
  resource_type int8
  resource_name string
""",
)
ELECT_LEADERS = kafka_api(
    43,
    "elect_leaders",
    0,
    2,
    flexible=2,
    request="""
election_type int8 1+
topic_partitions [] ?
  topic string
  partitions []int32
timeout_ms int32 =60000
""",
    response="""
throttle_time_ms int32 =0
error_code int16 1+
replica_election_results []
  topic string
  partition_result []
    partition_id int32
    error_code int16
    error_message string ?
""",
)
DESCRIBE_LOG_DIRS = kafka_api(
    35,
    "describe_log_dirs",
    1,
    4,
    flexible=2,
    request="""
topics [] ?
  topic string
  partitions []int32
""",
    response="""
throttle_time_ms int32 =0
error_code int16 3+
results []
  error_code int16
  log_dir string
  topics []
    name string
    partitions []
      partition_index int32
      partition_size int64
      offset_lag int64
      is_future_key bool
  total_bytes int64 4+ =-1
  usable_bytes int64 4+ =-1
""",
)

APIS = (
    CREATE_TOPICS,
    DELETE_TOPICS,
    CREATE_PARTITIONS,
    DESCRIBE_CONFIGS,
    LIST_CONFIG_RESOURCES,
    INCREMENTAL_ALTER_CONFIGS,
    ALTER_CONFIGS,
    ELECT_LEADERS,
    DESCRIBE_LOG_DIRS,
)
