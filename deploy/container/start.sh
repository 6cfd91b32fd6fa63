#!/bin/sh
# Starts the node that the environment describes (HIGHTIDE_NODE_ID, HIGHTIDE_CLUSTER_ID, HIGHTIDE_LOG_DIRS, …).
# Its directory is made if there is none: for a new cluster only where CLUSTER_IS_NEW says so. Anywhere else it may
# have been lost, and what it promised with it: then it is made for a cluster that exists, and the node votes once the
# others let it in (controller.quorum.auto.join.enable, or `hightide quorum add`).
set -eu
data=${HIGHTIDE_LOG_DIRS:?the data directory}
if [ ! -e "$data/meta.properties" ]; then
    join=--join
    [ "${CLUSTER_IS_NEW:-false}" = true ] && join=
    # shellcheck disable=SC2086
    hightide storage format --cluster-id "${HIGHTIDE_CLUSTER_ID:?as hightide storage id prints it}" $join
fi
exec hightide server start "$@"
