#!/usr/bin/env bash
# Keeps this machine in a Ray cluster: finds out whose devices it has, labels the node with it, and starts Ray
# again whenever it ends. A node that was declared dead exits when its link heals, and does not come back by
# itself. SIGTERM ends Ray and then this script, with exit code 0.
#
#   LONGHAUL_HEAD=10.0.0.1:6379 cluster/start_worker.sh [options of ray start]
#
# LONGHAUL_HEAD    where the head listens
# LONGHAUL_VENDOR  nvidia, amd or cpu; must be said where there are devices of both or of none
# LONGHAUL_GROUP   the group's name; without it, the vendor's
# LONGHAUL_DEVICE  the devices' market name; without it, what the driver calls them
# LONGHAUL_DOMAIN  what fails together with this node, such as its rack; copies in memory go to another one
# LONGHAUL_TEMP    a folder for Ray's files, of at most 36 letters; without it, the unit's, or ~/.longhaul. Nobody
#                  else can enter it then
# RAY_enable_metrics_collection  1 opens the port for Prometheus, which asks for no token
# RAY_AUTH_MODE    token; and the token, as cluster/require_token.sh says
# LONGHAUL_ROOT    in front of /dev, /proc and /sys, for trying this on a machine that has no devices
#
# Exit codes: 0 stopped by a signal, 1 not now (the driver may still be loading), 2 wrong settings.
set -uo pipefail

readonly ROOT=${LONGHAUL_ROOT:-}
SCRIPTS=$(dirname -- "${BASH_SOURCE[0]}")
readonly SCRIPTS
readonly FIRST_WAIT_S=2
# Where the machine or the head is busy each try takes Ray half a minute, and the node is away all the while.
# By chance a wait is up to half longer or shorter: all nodes lose a head at the same moment.
readonly LONGEST_WAIT_S=10
# What ran for so long was well: the next failure is a new one.
readonly HEALTHY_S=600
# Ray tells its makers nothing of the cluster.
export RAY_USAGE_STATS_ENABLED=0
# Ray's agent gives its figures to everybody who reaches the port: no token, and no address to choose.
export RAY_enable_metrics_collection=${RAY_enable_metrics_collection:-0}

main() {
    [[ -n ${LONGHAUL_HEAD:-} ]] || refuse "LONGHAUL_HEAD is not set; expected the head's address, host:6379"
    "$SCRIPTS/require_token.sh" || exit
    local vendor device group labels folder
    vendor=$(find_vendor) || exit
    device=$(find_device "$vendor") || exit
    group=$(as_label "${LONGHAUL_GROUP:-$vendor}")
    [[ -n $group ]] || refuse "LONGHAUL_GROUP is '$LONGHAUL_GROUP'; expected a name with letters or digits"
    labels="longhaul.group=$group,longhaul.vendor=$vendor"
    [[ -z $device ]] || labels+=",longhaul.device=$(as_label "$device")"
    [[ -z ${LONGHAUL_DOMAIN:-} ]] || labels+=",longhaul.domain=$(as_label "$LONGHAUL_DOMAIN")"
    folder=$(closed_folder) || exit
    [[ $vendor != amd ]] || check_amd "$@"
    trap stop TERM INT
    keep_running ray start --address="$LONGHAUL_HEAD" --labels="$labels" --temp-dir="$folder/ray" --block "$@"
}

find_vendor() {
    local has_amd='' has_nvidia=''
    [[ ! -e $ROOT/dev/kfd ]] || has_amd=1
    [[ -z $(nvidia_names) ]] || has_nvidia=1
    case "${LONGHAUL_VENDOR:-}/$has_nvidia/$has_amd" in
        nvidia/1/* | /1/) echo nvidia ;;
        amd/*/1 | //1) echo amd ;;
        cpu/*/*) echo cpu ;;
        /1/1) refuse "found devices of NVIDIA and of AMD; expected LONGHAUL_VENDOR to say which to use" ;;
        //) fail "found no device ($ROOT/dev/kfd, nvidia-smi); set LONGHAUL_VENDOR=cpu if that is right" ;;
        nvidia/*) fail "LONGHAUL_VENDOR is nvidia, but nvidia-smi finds no device; look at its output" ;;
        amd/*) fail "LONGHAUL_VENDOR is amd, but there is no $ROOT/dev/kfd; is the driver amdgpu loaded?" ;;
        *) refuse "LONGHAUL_VENDOR is '$LONGHAUL_VENDOR'; expected nvidia, amd or cpu" ;;
    esac
}

find_device() {
    if [[ -n ${LONGHAUL_DEVICE:-} || $1 == cpu ]]; then
        echo "${LONGHAUL_DEVICE:-}"
        return
    fi
    local names
    names=$("$1_names" | sort -u)
    [[ $names != *$'\n'* ]] || refuse "found several models (${names//$'\n'/, }); a group has devices of one"
    [[ -n $names ]] || say "the driver names no model: plans and MFU need LONGHAUL_DEVICE"
    echo "$names"
}

# What it says when it fails goes to standard output too, and would be taken for a name.
nvidia_names() {
    local names
    names=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) && echo "$names"
}

# Only server cards have a name there, and a virtual machine's may have none.
amd_names() {
    cat "$ROOT"/sys/class/drm/card*/device/product_name 2>/dev/null | grep -v '^$'
}

# Ray takes letters, digits and . _ - in a label, with a letter or digit at both ends.
as_label() {
    local text=${1//[^A-Za-z0-9._-]/-}
    while [[ $text == [-._]* ]]; do text=${text#?}; done
    text=${text:0:63}
    while [[ $text == *[-._] ]]; do text=${text%?}; done
    echo "$text"
}

# Ray opens its folder to everybody, and believes what lies in it: code of jobs, ports, links.
closed_folder() {
    local folder=${LONGHAUL_TEMP:-${CACHE_DIRECTORY:-${HOME:-}/.longhaul}}
    if ! { (umask 077 && mkdir -p -- "$folder") && [[ -O $folder && ! -L $folder ]] && chmod 700 -- "$folder"; }; then
        refuse "$folder can't be closed to others; expected a folder of this user in LONGHAUL_TEMP"
    fi
    echo "$folder"
}

check_amd() {
    [[ -z ${ROCR_VISIBLE_DEVICES+set} || -n ${HIP_VISIBLE_DEVICES+set} ]] || name_devices_as_ray_does
    if [[ " $*" != *" --num-gpus"* ]] && ! rays_python_has amdsmi; then
        refuse "Ray counts AMD's devices by the package amdsmi, which its Python has not: it would count" \
            "none; install /opt/rocm/share/amd_smi, or say --num-gpus"
    fi
    warn_of_numa_balancing
}

# Slurm sets this variable alone, and Ray ends at it. The other one has the same numbers where it stands alone.
name_devices_as_ray_does() {
    if [[ ! $ROCR_VISIBLE_DEVICES =~ ^[0-9]+(,[0-9]+)*$ ]]; then
        refuse "ROCR_VISIBLE_DEVICES is '$ROCR_VISIBLE_DEVICES', and Ray ends at that; expected" \
            "HIP_VISIBLE_DEVICES with the devices' numbers"
    fi
    say "Ray ends at ROCR_VISIBLE_DEVICES: its $ROCR_VISIBLE_DEVICES is given as HIP_VISIBLE_DEVICES"
    export HIP_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES
    unset ROCR_VISIBLE_DEVICES
}

# Where another program than a Python runs ray, nothing is known of its packages.
rays_python_has() {
    local line
    IFS= read -r line <"$(command -v ray)" && [[ $line == '#!'*python* ]] || return 0
    ${line#'#!'} -c "import $1" >/dev/null 2>&1
}

warn_of_numa_balancing() {
    local setting=$ROOT/proc/sys/kernel/numa_balancing
    if [[ -r $setting && $(<"$setting") != 0 ]]; then
        say "$setting is not 0: RCCL stalls while the kernel moves its pages; set it to 0"
    fi
}

keep_running() {
    local wait_s=$FIRST_WAIT_S began code this_wait_s
    while :; do
        began=$(date +%s)
        run "$@"
        code=$?
        (($(date +%s) - began < HEALTHY_S)) || wait_s=$FIRST_WAIT_S
        this_wait_s=$(about "$wait_s")
        say "ray ended with $code; starting it again in $this_wait_s s"
        run sleep "$this_wait_s"
        wait_s=$((wait_s * 2 < LONGEST_WAIT_S ? wait_s * 2 : LONGEST_WAIT_S))
    done
}

# So many seconds, and up to half more or less; RANDOM is at most 32767.
about() {
    local tenths=$(($1 * 5 + RANDOM * ($1 * 10 + 1) / 32768))
    echo "$((tenths / 10)).$((tenths % 10))"
}

# In the background, because bash attends to a signal only between its own commands.
run() {
    "$@" &
    wait $!
}

stop() {
    local jobs
    mapfile -t jobs < <(jobs -p)
    ((${#jobs[@]} == 0)) || kill -TERM "${jobs[@]}" 2>/dev/null
    wait
    say "stopped"
    exit 0
}

say() { echo "start_worker: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

refuse() {
    say "$*"
    exit 2
}

main "$@"
