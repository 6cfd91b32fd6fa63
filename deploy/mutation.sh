#!/usr/bin/env bash
# Change core/ one expression at a time, and see whether the tests of its rooms notice: nine of ten must be
# noticed in each room. Hours on two cores. Arguments choose rooms; none, all of them. What was found stays
# in .evidence/mutation, where a second run goes on, and where `mutmut show NAME` shows what nobody noticed.
set -euo pipefail
cd "$(dirname "$0")/.."
source deploy/venv.sh
venv=$(realpath "$venv")
place=.evidence/mutation
wanted_percent=90
[ $# -gt 0 ] || set -- quorum cluster replication groups

deploy/test.sh --collect-only -q tests/test_tidy.py > /dev/null
install "mutmut>=3.8"
mkdir -p "$place/src"
# Which tests reach which function is found again: an earlier run asked only for the functions of its rooms.
rm -rf "$place/tests" "$place"/src/* "$place/mutants/tests" "$place/mutants/mutmut-stats.json"
cp -r client/hightide client/pyspark_hightide broker/hightide_broker cli/hightide_cli "$place/src"
cp -r tests "$place"
{
    awk '/^\[/ { copied = /tool\.pytest/ } copied' pyproject.toml
    cat << 'TOML'

[tool.mutmut]
source_paths = ["src/"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-m", "not slow and not live and not spark"]
pytest_add_cli_args_test_selection = ["tests/quorum", "tests/cluster", "tests/replication", "tests/groups"]
track_dependencies = false
TOML
    # By files, not by names: what is asked for by its name is tried again each time.
    printf 'only_mutate = [%s]\n' "$(printf '"src/hightide_broker/core/%s/*",' "$@")"
} > "$place/pyproject.toml"

cd "$place"
HIGHTIDE_TRIES=all "$venv/bin/mutmut" run > run.log 2>&1 || { tail -5 run.log; exit 1; }
"$venv/bin/mutmut" results --all true | sed 's/: /:/' | awk -F: -v rooms="$*" -v wanted="$wanted_percent" '
    { split($1, parts, "."); room = parts[3]; made[room]++ }
    $2 ~ /killed|timeout|segfault/ { noticed[room]++; next }
    { print $2 ":" $1 }
    END {
        printf "%-14s %8s %8s\n", "room", "changes", "noticed"
        for (n = split(rooms, names, " "); n > 0; n--) {
            percent = made[names[n]] ? 100 * noticed[names[n]] / made[names[n]] : 0
            printf "%-14s %8d %7.1f%%\n", names[n], made[names[n]], percent
            if (percent < wanted) failed = 1
        }
        exit failed
    }'
