#!/bin/sh
# pdsh.sh JOB HOST:PORT... [-- FLAGS]: runs a task on each host through pdsh and ssh. JOB, the data and
# trainerd must have the same path on every host. Exits when all tasks have exited, with the highest exit
# code. To stop the job, run trainerctl stop FIRST:PORT; an interrupt of pdsh does not reach the tasks.
#
#     config/pdsh.sh /srv/training/digits/digits.json node1:2222 node2:2222 -- --devices cpu:2
set -eu
[ $# -ge 2 ] || { sed -n 2,6p "$0" >&2; exit 2; }
job=$1
shift

index=0 hosts='' workers='' choose=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    hosts="$hosts${hosts:+,}${1%:*}"
    workers="$workers${workers:+, }\"$1\""
    choose="$choose ${1%:*}) index=$index ;;"
    index=$((index + 1))
    shift
done
[ $# -eq 0 ] || shift

# pdsh replaces %h with the name of the host. Its %n is unsuitable: pdsh numbers the hosts in its own order.
TF_CONFIG="{\"cluster\": {\"worker\": [$workers]}}"
pdsh -S -R ssh -w "$hosts" "case %h in$choose esac
    TF_CONFIG='$TF_CONFIG' exec ${TRAINERD:-trainerd} --job '$job' --task worker:\$index $*"
