"""``longhaul completion SHELL`` prints the script that the shell reads."""

import argparse

from jobs.cli.completion.bash import bash_script
from jobs.cli.completion.fish import fish_script
from jobs.cli.completion.tree import levels
from jobs.cli.completion.zsh import zsh_script
from jobs.commandline.exit_codes import EXIT_OK, run_command

_SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


def completion(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return run_command("completion", lambda: _print(args.shell, parser), {})


def _print(shell: str, parser: argparse.ArgumentParser) -> int:
    print(_SCRIPTS[shell](tuple(levels(parser))), end="")
    return EXIT_OK
