"""Completion for zsh, with what each word means beside it. Pure."""

from collections.abc import Sequence

from jobs.cli.completion.tree import Level

_SCRIPT = """\
#compdef longhaul
# Completes `longhaul` in zsh. Put into ~/.zshrc, after compinit: eval "$(longhaul completion zsh)"
_longhaul_commands() {
  found=()
  case $1 in
%(commands)s  esac
}
_longhaul_flags() {
  found=()
  case $1 in
%(flags)s  esac
}
# Sets found to the values of a flag, which are none if it takes any. A flag that takes none is no success.
_longhaul_values() {
  found=()
  case "$1 $2" in
%(values)s    *) return 1 ;;
  esac
}
_longhaul() {
  local level="" is_value=no flag="" word at
  local -a found
  for ((at = 2; at < CURRENT; at++)); do
    word=${words[at]}
    if [[ $is_value == yes ]]; then is_value=no; continue; fi
    if [[ $word == -* ]]; then
      if _longhaul_values "$level" "$word"; then is_value=yes flag=$word; fi
    else
      _longhaul_commands "$level"
      if (( ${found[(I)$word:*]} )); then level=${level:+$level }$word; fi
    fi
  done
  if [[ $is_value == yes ]]; then
    _longhaul_values "$level" "$flag"
    if (( $#found )); then _describe value found; else _files; fi
  elif [[ ${words[CURRENT]} == -* ]]; then
    _longhaul_flags "$level"
    _describe flag found
  else
    _longhaul_commands "$level"
    if (( $#found )); then _describe command found; else _files; fi
  fi
}
compdef _longhaul longhaul
"""


def zsh_script(levels: Sequence[Level]) -> str:
    values = [
        (f"{level.key} {name}", [(choice, "") for choice in flag.choices])
        for level in levels
        for flag in level.flags
        if flag.takes_value
        for name in flag.names
    ]
    return _SCRIPT % {
        "commands": _cases(
            [(level.key, [*level.commands, *((word, "") for word in level.words)]) for level in levels]
        ),
        "flags": _cases(
            [
                (level.key, [(name, flag.help) for flag in level.flags for name in flag.names])
                for level in levels
            ]
        ),
        "values": _cases(values),
    }


def _cases(pairs: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    return "".join(f"    '{key}') found=({_described(words)}) ;;\n" for key, words in pairs)


def _described(words: Sequence[tuple[str, str]]) -> str:
    # A colon parts a word from its meaning.
    return " ".join(f"'{word}:{meaning.replace(':', '')}'" for word, meaning in words)
