#!/usr/bin/env bash
# The long runs behind the promises, and one table of what came out: hours on two cores.
# Names of runs as arguments choose some; SCALE=5 takes 5 % of each but those of mutation. Logs go to .evidence/.
set -uo pipefail
cd "$(dirname "$0")/.."
export HIGHTIDE_VENV=${HIGHTIDE_VENV:-.venv} HIGHTIDE_COMMANDS=cold
bin=$HIGHTIDE_VENV/bin
pytest=("$bin/python" -m pytest -q -s)
scale=${SCALE:-100}
wanted=" $* "
table=()
failed=0
mkdir -p .evidence
deploy/test.sh --collect-only -q tests/test_tidy.py > .evidence/install.log || exit

of() { echo $(($1 * scale / 100 > 0 ? $1 * scale / 100 : 1)); }

# run NAME SIZE COMMAND…: a line of the table.
run() {
    local name=$1 size=$2 began=$SECONDS verdict=held
    shift 2
    [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
    echo "$name: $size, see .evidence/$name.log"
    "$@" > ".evidence/$name.log" 2>&1 || { verdict=BROKEN failed=1; }
    table+=("$(printf '%-20s %-42s %-7s %5d s' "$name" "$size" "$verdict" $((SECONDS - began)))")
}

seeds=$(of 20000); run quorum "$seeds seeds" \
    "$bin/hightide" sim run --world quorum --seeds "1..$seeds" -o json
seeds=$(of 10000); run replicated "$seeds seeds" \
    "$bin/hightide" sim run --world replicated --seeds "1..$seeds" -o json
seeds=$(of 5000); run rows "$seeds seeds" \
    "$bin/hightide" sim run --world rows --seeds "1..$seeds" -o json
seeds=$(of 10000); run unsynced "$seeds seeds" \
    "$bin/hightide" sim run --world unsynced --seeds "1..$seeds" -o json
run mutants "every planted bug" \
    env HIGHTIDE_MUTANTS=all HIGHTIDE_TRIES=all "${pytest[@]}" tests/simulation
run tries "all examples, storms and attacks" \
    env HIGHTIDE_TRIES=all "${pytest[@]}" -m "not live and not spark" tests
run live "every way of every live test" \
    env HIGHTIDE_TRIES=all "${pytest[@]}" -m "live or spark" tests
for room in quorum cluster replication groups; do
    run "mutation-$room" "every expression of core/$room changed" deploy/mutation.sh "$room"
done
runs=$(of 10000000); run fuzz "$runs inputs that strangers might send" deploy/fuzz.sh --runs "$runs"
seconds=$(of 1800); run chaos "$seconds s of kills, cuts, full disks" \
    env CHAOS_S="$seconds" "${pytest[@]}" tests/live/test_chaos_live.py
rounds=$(of 2000); run clients "$rounds programs that are interrupted" \
    env HIGHTIDE_ROUNDS="$rounds" "${pytest[@]}" tests/client/test_client_adversary.py
rounds=$(of 300); run spark "$rounds queries that are killed" \
    env HIGHTIDE_ROUNDS="$rounds" "${pytest[@]}" tests/spark/test_spark_adversary.py
rounds=$(of 50); run spark-kills "$rounds brokers and drivers killed" \
    env HIGHTIDE_KILLS="$rounds" "${pytest[@]}" tests/spark/test_spark_kills.py
run secure "every live test on secure clusters" \
    env HIGHTIDE_SECURE=1 HIGHTIDE_TRIES=all HIGHTIDE_KILLS=1 HIGHTIDE_MASTERS=all "${pytest[@]}" \
    -m "live or spark" tests
run spark-clusters "every kind of Spark cluster" \
    env HIGHTIDE_MASTERS=all "${pytest[@]}" tests/spark/test_spark_cluster.py

printf '\n%-20s %-42s %-7s %s\n' run size promises time
printf '%s\n' "${table[@]}"
exit "$failed"
