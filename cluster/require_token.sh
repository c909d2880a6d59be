#!/usr/bin/env bash
# Runs a command where Ray asks everybody for its token, and else refuses with exit code 2: without it, whoever
# reaches a port of Ray runs code as its user.
#
#   cluster/require_token.sh [COMMAND...]
set -uo pipefail

readonly REMEDY="make a token once with 'ray get-auth-token --generate', put the same one on every node, readable \
by Ray's user alone, and set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH for all that starts Ray"

refuse() {
    echo "require_token: $*; $REMEDY" >&2
    exit 2
}

[[ ${RAY_AUTH_MODE:-} == token ]] || refuse "RAY_AUTH_MODE is '${RAY_AUTH_MODE:-}', expected token"
if [[ -z ${RAY_AUTH_TOKEN:-} ]]; then
    path=${RAY_AUTH_TOKEN_PATH:-${HOME:-}/.ray/auth_token}
    [[ -r $path && -s $path ]] || refuse "found no token in RAY_AUTH_TOKEN and none that we may read in $path"
fi
exec "$@"
