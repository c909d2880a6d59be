# Below is the same in every job: `longhaul slurm` writes what differs above it.
#
# Slurm runs it on the job's first node. It starts a Ray of this job alone, with a head here and a worker on
# each node, then the driver, and it ends only what it has started.
#
#   SIGUSR1   the wall time ends soon: the driver saves and ends, and the job is queued again
#   SIGTERM   scancel or preemption: the driver saves and ends, and Slurm decides what becomes of the job

readonly START_TIMEOUT_S=300
readonly NODE_END_TIMEOUT_S=20
readonly EXIT_STOPPED=130

main() {
    local code
    trap 'ask_to_stop wall_time' USR1
    trap 'ask_to_stop cancelled' TERM INT HUP
    trap end_this_node EXIT
    open_folder || return 1
    go_to_directory
    make_token
    keep_settings || return 1
    progress >"$FOLDER/progress" &
    start_cluster && drive
    code=$?
    end_nodes
    queue_again "$code"
}

# Why the job stops before its end; empty until then. A job that is cancelled is not queued again.
STOPS=''
# The process that is waited for, and the one that SIGTERM goes to.
WAITED=''
DRIVER=''

ask_to_stop() {
    # Past its wall time a job gets the same SIGTERM as by scancel.
    if [[ $1 == wall_time || (-n $TIME_S && $SECONDS -ge $TIME_S) ]]; then
        [[ -n $STOPS ]] || STOPS=wall_time
    else
        STOPS=cancelled
    fi
    if [[ -n $DRIVER ]]; then
        kill -TERM "$DRIVER" 2>/dev/null
    elif [[ -n $WAITED ]]; then
        kill -KILL "$WAITED" 2>/dev/null
    fi
}

# Bash attends to a signal only between its own commands, so everything long runs beside it.
wait_for() {
    local code own
    WAITED=$1
    while :; do
        wait "$1"
        code=$?
        if ((code <= 128)) || ! kill -0 "$1" 2>/dev/null; then break; fi
    done
    WAITED=''
    # Above 128 it is the signal's, also where the process has ended meanwhile; its own is still to be had.
    if ((code > 128)); then
        wait "$1" 2>/dev/null
        own=$?
        ((own == 127)) || code=$own
    fi
    return "$code"
}

say() { printf 'longhaul job %s: %s\n' "${SLURM_JOB_ID:-?}" "$*" >&2; }

# Only this user can enter the folder. Its name is short, because Ray's sockets lie below it, and no other job
# has it.
open_folder() {
    local place=${TMPDIR:-/tmp}
    [[ ${#place} -le 12 && -d $place && -w $place ]] || place=/tmp
    FOLDER=$(umask 077 && mktemp -d -- "$place/lhs-${SLURM_JOB_ID:-0}-XXXXXX") && chmod 700 -- "$FOLDER" && return
    say "no folder can be made in $place, in which Ray keeps its files; is it full?"
    return 1
}

go_to_directory() {
    cd -- "$DIRECTORY" 2>/dev/null && return
    say "there is no folder $DIRECTORY here, so that relative paths of the spec start in $FOLDER"
    cd -- "$FOLDER" || return
}

# On no command line, which others could read, and in no environment.
make_token() {
    umask 077
    TOKEN=$(od -An -v -N32 -tx1 /dev/urandom | tr -d ' \n')
    keep_token "$TOKEN"
    printf '%s\n' "$SPEC" >"$FOLDER/$SPEC_FILE"
}

# Others may read the driver's command line, so settings with a secret among them reach it through files.
keep_settings() {
    local number value file
    for ((number = 0; number < ${#SETTINGS[@]}; number += 2)); do
        value=${SETTINGS[number + 1]}
        file=$FOLDER/setting-$number
        if [[ $value != @* ]]; then
            (umask 077 && printf '%s' "$value" >"$file") || return
            value=@$file
        fi
        IN_FILES+=(--set "${SETTINGS[number]}=$value")
    done
}
IN_FILES=()

keep_token() {
    (umask 077 && printf '%s' "$1" >"$FOLDER/token")
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$FOLDER/token RAY_USAGE_STATS_ENABLED=0
    # Ray gives its figures to everybody who reaches the port. 1 in the environment of the job opens it.
    export RAY_enable_metrics_collection=${RAY_enable_metrics_collection:-0}
    # The head's own figures; -1 is no port, so that Ray notes an error and goes on.
    export AUTOSCALER_METRIC_PORT=${AUTOSCALER_METRIC_PORT:--1} DASHBOARD_METRIC_PORT=${DASHBOARD_METRIC_PORT:--1}
    unset RAY_AUTH_TOKEN RAY_ADDRESS
}

# Runs a command of Longhaul's Python, in the container if there is one. It becomes the command, so run it in
# the background or in a subshell.
inside() {
    local program=$PYTHON
    if [[ -z $IMAGE ]]; then
        [[ -z $TREE ]] || export PYTHONPATH="$TREE${PYTHONPATH:+:$PYTHONPATH}"
        [[ $program != */* ]] || export PATH="${program%/*}:$PATH"
        command -v "$program" >/dev/null || refuse_python "$program"
        exec "$program" "$@"
    fi
    local runtime devices=()
    runtime=$(command -v apptainer || command -v singularity) || {
        say "neither apptainer nor singularity is on PATH of $(hostname)"
        exit 2
    }
    [[ ! -e /dev/kfd ]] || devices+=(--rocm)
    ! command -v nvidia-smi >/dev/null || devices+=(--nv)
    for bound in "$FOLDER" "$DIRECTORY" "$STORE_FOLDER"; do
        [[ -z $bound || ! -d $bound ]] || devices+=(--bind "$bound")
    done
    unset PYTHONPATH PYTHONHOME
    exec "$runtime" exec "${devices[@]}" --pwd "$PWD" "$IMAGE" "$program" "$@"
}

refuse_python() {
    say "there is no $1 on $(hostname): Longhaul must be at the same place on each node, or in a --container"
    exit 2
}

start_cluster() {
    local peer tasks part size=${SLURM_HET_SIZE:-1} num_nodes=0
    peer=$(address_of_a_peer)
    start_head "$peer" || return
    LONGHAUL_HEAD=$(<"$FOLDER/ray/ray_current_cluster")
    export LONGHAUL_HEAD
    for ((part = 0; part < size; part++)); do
        tasks=$(num_nodes_of "$part")
        num_nodes=$((num_nodes + tasks))
        start_nodes "$part" "$tasks" || return
    done
    say "Ray's head is at $LONGHAUL_HEAD; $num_nodes node(s) join"
    (inside -m cluster.slurm.wait_for_nodes "$LONGHAUL_HEAD" "$num_nodes" "$START_TIMEOUT_S") </dev/null &
    wait_for $! || { [[ -n $STOPS ]] && return "$EXIT_STOPPED"; return 1; }
}

# As Slurm reaches it; a job on one node needs no network.
address_of_a_peer() {
    local names name
    names=$(for name in "${SLURM_JOB_NODELIST_HET_GROUP_1:-}" "${SLURM_JOB_NODELIST:-}"; do
        [[ -z $name ]] || scontrol show hostnames "$name"
    done | grep -Fxv -- "${SLURMD_NODENAME:-}" | head -n 1)
    [[ -n $names ]] || { echo 127.0.0.1; return; }
    name=$(scontrol --oneliner show node "$names" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
    echo "${name:-$names}"
}

# Ray gives its start 30 s, which a busy node may need for reading the libraries alone.
start_head() {
    local try code
    for try in 1 2 3; do
        (LONGHAUL_SLURM_FOLDER=$FOLDER inside -m cluster.slurm.head "$FOLDER" "$1") \
            >"$FOLDER/head.log" 2>&1 </dev/null &
        HEAD=$!
        wait_for_head
        code=$?
        ((code == 1 && try < 3)) || return "$code"
        say "it is started again"
        end_marked
        rm -rf -- "$FOLDER/ray"
    done
}

wait_for_head() {
    until [[ -s $FOLDER/ray/ray_current_cluster ]]; do
        [[ -z $STOPS ]] || return "$EXIT_STOPPED"
        if ! kill -0 "$HEAD" 2>/dev/null || ((SECONDS > START_TIMEOUT_S)); then
            say "Ray's head did not start: $(tail -n 1 -- "$FOLDER/head.log")"
            return 1
        fi
        sleep 0.2
    done
}

num_nodes_of() {
    local of_part=SLURM_JOB_NUM_NODES_HET_GROUP_$1
    echo "${!of_part:-${SLURM_JOB_NUM_NODES:-1}}"
}

# The pipe carries the token to every node, and its end is the nodes' end: nothing else needs to reach them.
start_nodes() {
    local pipe=$FOLDER/pipe-$1 part=() descriptor
    [[ -z ${SLURM_HET_SIZE:-} ]] || part=(--het-group="$1")
    mkfifo -m 600 -- "$pipe" || return
    LONGHAUL_GROUP=${NODE_GROUPS[$1]:-} LONGHAUL_VENDOR=${NODE_VENDORS[$1]:-} \
        srun ${part[@]+"${part[@]}"} --nodes="$2" --ntasks="$2" --ntasks-per-node=1 --overlap --mem=0 --cpu-bind=none \
        --kill-on-bad-exit=1 --label --export=ALL bash -c "$(node_program)" longhaul-node <"$pipe" &
    STEPS+=($!)
    exec {descriptor}>"$pipe"
    PIPES+=("$descriptor")
    printf '%s\n' "$TOKEN" >&"$descriptor"
}
STEPS=()
PIPES=()

# The functions that a node needs: it may not see this file.
node_program() {
    declare -p PYTHON TREE IMAGE DIRECTORY STORE_FOLDER
    declare -f say open_folder keep_token inside refuse_python end_this_node end_marked marked node
    echo node
}

# Runs on each node, in the place of this script. SIGTERM is the driver's alone.
node() {
    local token worker code=0
    trap '' TERM INT HUP USR1
    IFS= read -r token || return 1
    open_folder || return 1
    trap end_this_node EXIT
    cd -- "$FOLDER" || return
    keep_token "$token"
    (LONGHAUL_SLURM_FOLDER=$FOLDER inside -m cluster.slurm.worker "$FOLDER") </dev/null &
    worker=$!
    while :; do
        IFS= read -r -t 1 _
        (($? > 128)) || break
        kill -0 "$worker" 2>/dev/null || { wait "$worker"; code=$?; break; }
    done
    return "$code"
}

drive() {
    [[ -z $STOPS ]] || return "$EXIT_STOPPED"
    local descriptor
    (
        for descriptor in "${PIPES[@]}"; do exec {descriptor}>&-; done
        export RAY_ADDRESS=$LONGHAUL_HEAD
        unset LONGHAUL_HEAD
        export LONGHAUL_SLURM_FOLDER=$FOLDER
        inside -m jobs.cli "$KIND" "$FOLDER/$SPEC_FILE" "${ARGUMENTS[@]}" ${IN_FILES[@]+"${IN_FILES[@]}"}
    ) </dev/null &
    DRIVER=$!
    wait_for "$DRIVER"
}

# What was saved so far: another word after the job than before it means that it got on.
progress() { (inside -m jobs.slurm.progress "$KIND" "$RUN" "$STORE" </dev/null); }

end_nodes() {
    local descriptor step deadline=$((SECONDS + NODE_END_TIMEOUT_S))
    for descriptor in ${PIPES[@]+"${PIPES[@]}"}; do exec {descriptor}>&-; done
    for step in ${STEPS[@]+"${STEPS[@]}"}; do
        while kill -0 "$step" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.2; done
        kill -KILL "$step" 2>/dev/null
    done
}

end_this_node() {
    [[ -n ${FOLDER:-} ]] || return
    local child children
    # A child that has not become its command yet does not carry the mark.
    children=$(jobs -pr)
    disown -a
    for child in $children; do kill -KILL "$child" 2>/dev/null; done
    end_marked
    cd / && rm -rf -- "$FOLDER"
}

# Ends what carries this folder's mark, and nothing else: its children keep it, whatever they call themselves.
end_marked() {
    local processes segments tries
    # Else bash tells of each that it was killed.
    disown -a
    for ((tries = 0; tries < 50; tries++)); do
        mapfile -t processes < <(marked)
        ((${#processes[@]} > 0)) || break
        mapfile -t segments < <(cat -- "${processes[@]/%//maps}" 2>/dev/null |
            grep -oE '/dev/shm/(nccl-|torch_|psm_|sem\.mp-)[^ ]*$' | sort -u)
        kill -KILL "${processes[@]#/proc/}" 2>/dev/null
        ((${#segments[@]} == 0)) || rm -f -- "${segments[@]}"
        sleep 0.1
    done
}

marked() {
    grep -lszFx -- "LONGHAUL_SLURM_FOLDER=$FOLDER" /proc/[0-9]*/environ 2>/dev/null | sed 's,/environ$,,'
}

queue_again() {
    if [[ $STOPS != wall_time ]]; then
        [[ -z $STOPS ]] || say "cancelled; the same script goes on: $SUBMIT"
        return "$1"
    fi
    local now
    # A store that is away says nothing, and may be back for the next start.
    now=$(progress)
    if [[ -n $now && $now == "$(<"$FOLDER/progress")" ]]; then
        say "nothing was saved in this allocation, so it is not queued again: give it more --time"
        return 1
    fi
    say "the wall time ends; it is queued again and goes on from there"
    if ! scontrol requeue "$SLURM_JOB_ID"; then
        sbatch "$0" || return 1
    fi
}

main
