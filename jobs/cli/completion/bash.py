"""Completion for bash. Pure."""

from collections.abc import Sequence

from jobs.cli.completion.tree import Level

_SCRIPT = """\
# Completes `longhaul` in bash. Put into ~/.bashrc: eval "$(longhaul completion bash)"
_longhaul_commands() {
  case $1 in
%(commands)s  esac
}
_longhaul_flags() {
  case $1 in
%(flags)s  esac
}
# Prints the values of a flag, or a dot if it takes any. A flag that takes none is no success.
_longhaul_values() {
  case "$1 $2" in
%(values)s    *) return 1 ;;
  esac
}
_longhaul() {
  local current=${COMP_WORDS[COMP_CWORD]} level="" is_value=no flag="" word at values
  for ((at = 1; at < COMP_CWORD; at++)); do
    word=${COMP_WORDS[at]}
    if [[ $word == "=" ]]; then continue; fi
    if [[ $is_value == yes ]]; then is_value=no; continue; fi
    if [[ $word == -* ]]; then
      if _longhaul_values "$level" "$word" > /dev/null; then is_value=yes flag=$word; fi
    elif [[ " $(_longhaul_commands "$level") " == *" $word "* ]]; then
      level=${level:+$level }$word
    fi
  done
  if [[ $current == "=" ]]; then current=""; fi
  COMPREPLY=()
  if [[ $is_value == yes ]]; then
    values=$(_longhaul_values "$level" "$flag")
    if [[ $values != . ]]; then COMPREPLY=($(compgen -W "$values" -- "$current")); fi
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$(_longhaul_flags "$level")" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$(_longhaul_commands "$level")" -- "$current"))
  fi
}
complete -o bashdefault -o default -F _longhaul longhaul
"""


def bash_script(levels: Sequence[Level]) -> str:
    """Where nothing of ours fits, bash completes names of files."""
    values = [
        (f"{level.key} {name}", " ".join(flag.choices) or ".")
        for level in levels
        for flag in level.flags
        if flag.takes_value
        for name in flag.names
    ]
    return _SCRIPT % {
        "commands": _cases(
            [(level.key, " ".join([*(name for name, _ in level.commands), *level.words])) for level in levels]
        ),
        "flags": _cases(
            [(level.key, " ".join(name for flag in level.flags for name in flag.names)) for level in levels]
        ),
        "values": _cases(values),
    }


def _cases(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(f"    '{key}') echo '{words}' ;;\n" for key, words in pairs)
