"""``longhaul completion``: what real shells offer at the Tab key, from the script that it prints."""

import argparse
import shutil
import subprocess
from collections.abc import Callable, Sequence

import pytest

from jobs.cli.arguments import longhaul_parser
from jobs.cli.completion.bash import bash_script
from jobs.cli.completion.fish import fish_script
from jobs.cli.completion.tree import Level, levels
from jobs.cli.completion.zsh import zsh_script

DEADLINE_S = 60
FILES = ["<files>"]

_ASK_BASH = """
source /dev/stdin
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _longhaul
if ((${#COMPREPLY[@]} == 0)); then echo '<files>'; else printf '%s\\n' "${COMPREPLY[@]}"; fi
"""
# zsh calls these two itself when a person presses Tab; here they print what they would show.
_ASK_ZSH = """
compdef() { : }
_files() { print '<files>' }
_describe() { local each; for each in "${(@P)2}"; do print -r -- "${each%%:*}"; done }
source /dev/stdin
words=("$@"); CURRENT=$#; _longhaul
"""
_ASK_FISH = "source; complete --do-complete $argv[1]"


def asked_of_bash(words: Sequence[str]) -> list[str]:
    return _lines(["bash", "-c", _ASK_BASH, "bash", *words], bash_script(all_levels()))


def asked_of_zsh(words: Sequence[str]) -> list[str]:
    told = _lines(["zsh", "-fc", _ASK_ZSH, "zsh", *words], zsh_script(all_levels()))
    # zsh itself leaves out what does not begin like the word.
    return told if told == FILES else [one for one in told if one.startswith(words[-1])]


def asked_of_fish(words: Sequence[str]) -> list[str]:
    told = _lines(["fish", "--no-config", "-c", _ASK_FISH, " ".join(words)], fish_script(all_levels()))
    return [line.partition("\t")[0] for line in told]


def _lines(command: list[str], script: str) -> list[str]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        command, input=script, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def all_levels() -> tuple[Level, ...]:
    return tuple(levels(longhaul_parser()))


Ask = Callable[[Sequence[str]], list[str]]
by_shell = pytest.mark.parametrize("ask", [asked_of_bash, asked_of_zsh, asked_of_fish])


@by_shell
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["longhaul", "tr"], ["train"]),
        (["longhaul", "sweep", "--ex"], ["--exclude-node", "--executor"]),
        (["longhaul", "sweep", "--executor", ""], ["inline", "ray"]),
        (["longhaul", "checkpoints", "exp"], ["export"]),
        (["longhaul", "checkpoints", "export", "--run", "train", "--dt"], ["--dtype"]),
        (["longhaul", "completion", "z"], ["zsh"]),
        # What a flag takes is no command, also if it is called like one.
        (["longhaul", "train", "--store", "checkpoints", "--fr"], ["--fresh"]),
    ],
)
def test_a_shell_offers_what_may_follow(ask: Ask, words: list[str], offered: list[str]) -> None:
    assert sorted(ask(words)) == offered


@by_shell
def test_a_shell_offers_every_command(ask: Ask) -> None:
    commands = [name for name, _ in all_levels()[0].commands]
    assert {"sweep", "train", "runs"} <= {*commands}
    assert sorted(ask(["longhaul", ""])) == sorted(commands)


@pytest.mark.parametrize("ask", [asked_of_bash, asked_of_zsh])
@pytest.mark.parametrize("words", [["longhaul", "sweep", ""], ["longhaul", "train", "--cluster", ""]])
def test_where_anything_may_follow_a_shell_offers_files(ask: Ask, words: list[str]) -> None:
    assert ask(words) == FILES


def test_bash_knows_a_value_behind_an_equals_sign() -> None:
    assert asked_of_bash(["longhaul", "sweep", "--executor", "=", "in"]) == ["inline"]


def test_what_a_help_holds_can_not_run_in_a_shell() -> None:
    parser = argparse.ArgumentParser(prog="longhaul")
    parser.add_argument("--bad", help="a 'quote' $(touch x) `id` \"and\" 5%% : more\\")
    (level,) = levels(parser)
    assert level.flags[1].help == "a quote (touch x) id and 5 percent : more"


def test_a_hidden_flag_is_not_offered() -> None:
    (train,) = (level for level in all_levels() if level.key == "train")
    assert "--kept" not in {name for flag in train.flags for name in flag.names}
