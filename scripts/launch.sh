# launch.sh - common part of trainerd-mpirun, trainerd-pdsh and trainerd-srun, which read it with ".".
# Reads their arguments and sets:
#   job     the job file
#   hosts   HOST or HOST:PORT,... in the order of the tasks: the value of --hosts of trainerd
#   names   the same without ports, separated by blanks
#   port    first control port of a host
#   first   address of the first task, for trainerctl stop; empty: no host was given
#   "$@"    the flags of trainerd
# and exports TRAINERD_PREFLIGHT for --preflight, and TRAINERD_TOKEN if the tasks need a token and none is given.
#
# After it: launch_check COMMAND... checks the job on every host, launch_run COMMAND... runs the job and exits
# with its exit code. POSIX sh.
# shellcheck shell=sh disable=SC2034,SC2154 # the scripts use the variables, and set `used`
set -eu

trainerd=${TRAINERD:-trainerd}
trainerctl=${TRAINERCTL:-trainerctl}
program=${0##*/}
job='' hosts='' names='' port=8888 first='' check=yes n_hosts=0

fail() {
    printf '%s: %s\n' "$program" "$*" >&2
    exit 2
}

# Prints the comment at the beginning of the script.
usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# Prints the host of an entry HOST, HOST:PORT, [V6] or [V6]:PORT.
host_of() {
    case $1 in
    \[*) host=${1#\[} && printf '%s\n' "${host%%\]*}" ;;
    *:*:*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "${1%:*}" ;;
    esac
}

# Prints the control address of an entry.
address_of() {
    case $1 in
    \[*\]) printf '%s\n' "$1:$port" ;;
    \[*) printf '%s\n' "$1" ;;
    *:*:*) printf '%s\n' "[$1]:$port" ;;
    *:*) printf '%s\n' "$1" ;;
    *) printf '%s\n' "$1:$port" ;;
    esac
}

add_host() {
    case $1 in
    '' | *[!A-Za-z0-9._:\[\]-]*) fail "host '$1': expected HOST or HOST:PORT" ;;
    esac
    hosts=$hosts${hosts:+,}$1
    names="$names${names:+ }$(host_of "$1")"
    n_hosts=$((n_hosts + 1))
}

# A host in each line: "HOST", "HOST:PORT", "HOST slots=N" (N tasks). Empty lines and comments are skipped.
add_hostfile() {
    [ -r "$1" ] || fail "--hostfile '$1': cannot read it"
    while read -r host slots _; do
        case $host in '' | \#*) continue ;; esac
        case $slots in
        '' | \#*) slots=1 ;;
        slots=[1-9] | slots=[1-9][0-9] | slots=[1-9][0-9][0-9]) slots=${slots#slots=} ;;
        *) fail "--hostfile '$1': '$host $slots': expected HOST or HOST slots=N" ;;
        esac
        while [ "$slots" -gt 0 ]; do
            add_host "$host"
            slots=$((slots - 1))
        done
    done <"$1"
}

# Prints the arguments quoted for a shell.
quote() {
    for word; do
        printf "'%s' " "$(printf '%s\n' "$word" | sed "s/'/'\\\\''/g")"
    done
}

# Succeeds if other hosts can reach the tasks, and neither a flag, a variable nor a key of the job decides
# who may join them. Without hosts Slurm chooses them.
needs_token() {
    [ -z "${TRAINERD_TOKEN:-}${TRAINERD_TLS:-}${TRAINERD_INSECURE:-}" ] || return 1
    case " $* " in *" --insecure "*) return 1 ;; esac
    ! grep -Eqs '"(token_file|tls)"' "$job" || return 1
    for name in ${names:-slurm}; do
        case $name in localhost | 127.* | ::1) ;; *) return 0 ;; esac
    done
    return 1
}

# The token is a secret: it is in the environment only, never in a command line, which every user of a host
# can read.
make_token() {
    TRAINERD_TOKEN=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')
    [ ${#TRAINERD_TOKEN} -eq 64 ] || fail '/dev/urandom: expected 32 bytes'
    export TRAINERD_TOKEN
}

say() {
    printf '%s: %s\n' "$program" "$*" >&2
}

# Each host must accept the job before a task is started: the same program, job file, model and data.
launch_check() {
    [ -n "$check" ] || return 0
    code=0
    "$@" >/dev/null || code=$?
    [ "$code" -eq 0 ] && return 0
    say "the check failed with exit code $code (see above); no task was started"
    exit 2
}

# Called by a signal. The first time the job saves and ends; the second time its launcher is ended.
launch_stop() {
    stops=$((stops + 1))
    if [ "$stops" -eq 1 ]; then
        say 'stopping: the job saves and ends; a second signal ends it at once'
        launch_request_stop && return 0
        say "the request to stop failed (see above); ending the launcher"
    fi
    kill -TERM "$launcher" 2>/dev/null || true
}

# A script may define another way to stop.
launch_request_stop() {
    [ -n "$first" ] && "$trainerctl" stop "$first" >&2
}

# The launcher has its own session, so that an interrupt of the terminal reaches this script only, and
# it ends when this script is killed.
launch_run() {
    stops=0
    launcher=''
    trap launch_stop INT TERM HUP
    if setpriv --pdeathsig TERM true 2>/dev/null; then
        setsid setpriv --pdeathsig TERM "$@" &
    else
        setsid "$@" &
    fi
    launcher=$!
    while :; do
        code=0
        wait "$launcher" || code=$?
        kill -0 "$launcher" 2>/dev/null || break
    done
    # a stopped job ends with 143, whatever the launcher makes of it
    [ "$stops" -eq 0 ] || [ "$code" -eq 0 ] || code=143
    exit "$code"
}

while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage && exit 0 ;;
    --hostfile) [ $# -ge 2 ] || fail '--hostfile: expected a file' ; add_hostfile "$2" && shift 2 ;;
    --port)
        case ${2:-} in '' | *[!0-9]*) fail "--port: expected 1 to 65535, found '${2:-}'" ;; esac
        port=$2
        shift 2
        ;;
    --no-check) check='' && shift ;;
    --preflight)
        case ${2:-} in '' | *[!0-9]*) fail "--preflight: expected seconds, found '${2:-}'" ;; esac
        export TRAINERD_PREFLIGHT="$2"
        shift 2
        ;;
    --)
        shift
        break
        ;;
    -*) launch_option "$@" && shift "$used" ;;
    *)
        if [ -z "$job" ]; then job=$1; else add_host "$1"; fi
        shift
        ;;
    esac
done
[ -n "$job" ] || { usage >&2 && exit 2; }
[ -z "$hosts" ] || first=$(address_of "${hosts%%,*}")
! needs_token "$@" || make_token
