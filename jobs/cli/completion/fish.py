"""Completion for fish, with what each word means beside it. Pure."""

from collections.abc import Iterator, Sequence

from jobs.cli.completion.tree import Flag, Level

_HEAD = """\
# Completes `longhaul` in fish. Once: longhaul completion fish > ~/.config/fish/completions/longhaul.fish
function __longhaul_level
    set -l level ""
    for word in (commandline --tokenize --cut-at-cursor --current-process)[2..-1]
        if contains -- "$level $word" {commands}
            set level (string trim -- "$level $word")
        end
    end
    echo $level
end
function __longhaul_is_at
    test (__longhaul_level) = "$argv[1]"
end
complete -c longhaul -e
"""


def fish_script(levels: Sequence[Level]) -> str:
    commands = " ".join(f"'{level.key} {name}'" for level in levels for name, _ in level.commands)
    lines = (line for level in levels for line in _lines(level))
    return _HEAD.replace("{commands}", commands) + "".join(f"{line}\n" for line in lines)


def _lines(level: Level) -> Iterator[str]:
    at = f"complete -c longhaul -n '__longhaul_is_at \"{level.key}\"'"
    for name, meaning in level.commands:
        yield f"{at} -f -a '{name}' -d '{meaning}'"
    for word in level.words:
        yield f"{at} -f -a '{word}'"
    for flag in level.flags:
        yield f"{at} {_spelt(flag)} {_taken(flag)}-d '{flag.help}'"


def _spelt(flag: Flag) -> str:
    return " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)


def _taken(flag: Flag) -> str:
    if flag.choices:
        return f"-x -a '{' '.join(flag.choices)}' "
    return "-r " if flag.takes_value else ""
