"""Runs the user's alert command: it gets the alarm as JSON and in variables, no shell, and a time limit."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from jobs.alerts.rules import Alarm, Ringing
from reporting.results.redaction import without_credentials

_MOST_SAID = 200


class Caller:
    """Runs one alert command at a time. A command that fails is reported with ``say`` and raises nothing."""

    def __init__(self, ringing: Ringing, say: Callable[[str], None]) -> None:
        self._ringing = ringing
        self._say = say
        self._running: subprocess.Popen[str] | None = None

    def call(self, facts: Mapping[str, Any]) -> None:
        try:
            process = self._running = subprocess.Popen(
                list(self._ringing.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **_variables(facts)},
                # Ctrl-C is for the training alone, and a command that hangs is killed with all that it
                # started.
                start_new_session=True,
            )
            _, told = process.communicate(json.dumps(facts), timeout=self._ringing.timeout_s)
            if process.returncode != 0:
                self._say(f"alarm: its command ended with {process.returncode}{_last_line(told)}")
        except OSError as error:
            self._say(f"alarm: its command can't be run: {error.strerror}")
        except ValueError as error:
            # For example a text that no environment variable can hold.
            self._say(f"alarm: its command can't be told: {error}")
        except subprocess.TimeoutExpired:
            self._say(f"alarm: its command was ended after {self._ringing.timeout_s:g} s")
        finally:
            self.end()

    def end(self) -> None:
        """Kills the command that still runs, if any, with all that it started."""
        process, self._running = self._running, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def facts_of(alarm: Alarm, *, run: str, store: str, attempt: int, at_s: float) -> dict[str, Any]:
    """The facts about an alarm that a command reads as JSON on its standard input."""
    about = {name: value for name, value in asdict(alarm).items() if name != "is_over"}
    return {"run": run, "store": without_credentials(store), "attempt": attempt, "at_s": at_s, **about}


def _variables(facts: Mapping[str, Any]) -> dict[str, str]:
    names = ("run", "store", "attempt", "step", "kind", "text")
    return {f"LONGHAUL_ALARM_{name.upper()}": str(facts[name]) for name in names}


def _last_line(told: str) -> str:
    lines = without_credentials(told).strip().splitlines()
    return f": {lines[-1][:_MOST_SAID]}" if lines else ""
