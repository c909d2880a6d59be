"""Turns what was seen into findings, each with its remedy. Pure: equal observations give equal findings."""

from collections.abc import Iterator

from jobs.doctor.examination import Finding
from jobs.doctor.security.exposure import Exposure, Folder, Listener

_SHOWN_PORTS = 8
# Without the umask Ray makes a file that other users may read, which is the next finding.
_TOKEN = (
    "set RAY_AUTH_MODE=token for all that starts Ray or joins it, and make a token: "
    "(umask 077; ray get-auth-token --generate)"
)
_LOOPBACK = (
    "leave RAY_ADDRESS unset for a private Ray; on a cluster, let only its own nodes reach these ports"
)
_FIGURES = (
    "start Ray there with RAY_enable_metrics_collection=0, a head also with AUTOSCALER_METRIC_PORT=-1 and "
    "DASHBOARD_METRIC_PORT=-1, or let only Prometheus reach the port"
)
_NOT_THEIRS = {
    "log records rewritten": "use cluster/store_policies/trainer.json, which denies it",
    "log records deleted": "use cluster/store_policies/trainer.json, which denies it",
    "writes beside the store's prefix": "limit the policy to the prefix: cluster/store_policies/trainer.json",
}


def judge(seen: Exposure) -> tuple[Finding, ...]:
    """Returns the findings, worst kinds first, then what was looked at and is well."""
    findings = [*_token(seen), *_sockets(seen), *_folders(seen), *_secrets(seen), *_store(seen)]
    return tuple(sorted(findings, key=lambda finding: finding.level == "ok"))


def _token(seen: Exposure) -> Iterator[Finding]:
    if seen.joins and not seen.has_token_mode:
        yield _problem(
            "token", f"RAY_AUTH_MODE is not token, and RAY_ADDRESS is {seen.joins}", f"{_TOKEN} --generate"
        )


def _sockets(seen: Exposure) -> Iterator[Finding]:
    ours = [one for one in seen.listeners if one.owner != "other"]
    by_process: dict[tuple[int, str], list[Listener]] = {}
    for one in ours:
        by_process.setdefault((one.pid, one.process), []).append(one)
    found = [finding for listeners in by_process.values() for finding in _of_process(listeners)]
    yield from found or [
        _well("ports", f"{len(ours)} of our sockets listen, on loopback alone, with a token")
    ]


def _of_process(listeners: list[Listener]) -> Iterator[Finding]:
    first = listeners[0]
    subject = f"process {first.pid} ({first.process})"
    if first.owner == "ray" and first.asks_for_token is False:
        yield _problem(
            subject, f"asks for no token at {_places(listeners)}", f"{_TOKEN} --generate; restart it"
        )
    for one in listeners:
        if one.open_path:
            remedy = _FIGURES if one.open_path == "/metrics" else f"{_TOKEN} --generate; restart it"
            yield _problem(subject, f"gives {one.open_path} to anybody at {_places([one])}", remedy)
    if outside := [one for one in listeners if not one.is_on_loopback]:
        yield _problem(subject, f"listens beyond this machine at {_places(outside)}", _LOOPBACK)


def _places(listeners: list[Listener]) -> str:
    shown = [_place(one) for one in listeners[:_SHOWN_PORTS]]
    return ", ".join(shown) + (
        f" and {len(listeners) - _SHOWN_PORTS} more" if len(listeners) > len(shown) else ""
    )


def _place(listener: Listener) -> str:
    return (
        f"[{listener.address}]:{listener.port}"
        if ":" in listener.address
        else f"{listener.address}:{listener.port}"
    )


def _folders(seen: Exposure) -> Iterator[Finding]:
    found = [finding for folder in seen.folders for finding in _of_folder(folder)]
    yield from found or [
        _well("folders", f"nobody else may write to any of the {len(seen.folders)} looked at")
    ]


def _of_folder(folder: Folder) -> Iterator[Finding]:
    mode = "600" if folder.is_secret else "700"
    if not folder.is_ours:
        yield _problem(
            folder.path, f"{folder.what} belongs to user {folder.owner}", "remove it, or name another place"
        )
    elif folder.writers:
        yield _problem(
            folder.path, f"{folder.writers} may write to {folder.what}", f"chmod {mode}, after a look at it"
        )
    elif folder.is_secret and folder.readers:
        yield _problem(
            folder.path, f"{folder.readers} may read {folder.what}", f"make a new one, with chmod {mode}"
        )


def _secrets(seen: Exposure) -> Iterator[Finding]:
    for one in seen.secrets:
        yield _problem(one.place, f"others can read the secret {one.name}", one.remedy)


def _store(seen: Exposure) -> Iterator[Finding]:
    trial = seen.trial
    if trial is None:
        return
    subject = f"store {trial.store}"
    if trial.failed:
        yield _problem(
            subject, f"could not be tried: {trial.failed}", "give credentials that may at least read"
        )
    for what in trial.allowed:
        yield _problem(subject, f"these credentials allow: {what}", _NOT_THEIRS[what])
    if trial.refused and not trial.allowed:
        yield _well(subject, f"refuses {', '.join(trial.refused)}")


def _problem(subject: str, found: str, remedy: str) -> Finding:
    return Finding(level="warning", subject=subject, found=found, remedy=remedy)


def _well(subject: str, found: str) -> Finding:
    return Finding(level="ok", subject=subject, found=found)
