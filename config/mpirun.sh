#!/usr/bin/env bash
# mpirun.sh JOB HOST:PORT... [-- FLAGS]: runs a task on each host through Open MPI, which only starts and
# watches the processes. TF_CONFIG contains the cluster; OMPI_COMM_WORLD_RANK is the index of each task.
# JOB, the data and trainerd must have the same path on every host.
#
#     config/mpirun.sh /srv/training/digits/digits.json node1:2222 node2:2222 -- --devices cpu:2
set -eu
[ $# -ge 2 ] || { sed -n 2,6p "$0" >&2; exit 2; }
job=$1
shift

hosts=() workers=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    hosts+=("${1%:*}")
    workers+="${workers:+, }\"$1\""
    shift
done
[ $# -eq 0 ] || shift

# One program context per host makes host i rank i. --oversubscribe ignores the slots; binding is off
# because trainerd pins its replicas itself.
contexts=()
for host in "${hosts[@]}"; do
    contexts+=(-np 1 --host "$host" -x TF_CONFIG "${TRAINERD:-trainerd}" --job "$job" "$@" :)
done
export TF_CONFIG="{\"cluster\": {\"worker\": [$workers]}, \"task\": {\"type\": \"worker\"}}"
exec mpirun --oversubscribe --bind-to none --tag-output "${contexts[@]:0:${#contexts[@]}-1}"
