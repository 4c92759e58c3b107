#!/usr/bin/env bash
# mpirun.sh JOB HOST:PORT... [-- FLAGS]: a task on each host through Open MPI, which starts and watches
# them and no more: the cluster is in TF_CONFIG, and each task takes its index from
# OMPI_COMM_WORLD_RANK. JOB, the data and trainerd have the same path everywhere.
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

# One program context per host, so that rank i is host i. Slots count for nothing, and there is no
# binding: trainerd pins its replicas itself.
contexts=()
for host in "${hosts[@]}"; do
    contexts+=(-np 1 --host "$host" -x TF_CONFIG "${TRAINERD:-trainerd}" --job "$job" "$@" :)
done
export TF_CONFIG="{\"cluster\": {\"worker\": [$workers]}, \"task\": {\"type\": \"worker\"}}"
exec mpirun --oversubscribe --bind-to none --tag-output "${contexts[@]:0:${#contexts[@]}-1}"
