"""``longhaul slurm``: what it writes, submits and says. A fake stands for sbatch."""

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from jobs.cli.__main__ import main
from tests.conftest import Golden
from tests.unit.other_user import NOBODY, needs_root
from tests.unit.printed import checked
from tests.unit.slurm.allocation import variables_of

DEADLINE_S = 60
RUN = "name: r\nmodel: llama-tiny\nworld_size: 2\nsteps: 10\n"
SWEEP = "name: s\nmodels: [llama-tiny]\naxes: {world_size: [1]}\n"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, no sbatch, no job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def slurm(text: str, *flags: str) -> int:
    Path("spec.yaml").write_text(text, encoding="utf-8")
    return main(["slurm", "spec.yaml", *flags])


def own_file(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_text("value", encoding="utf-8")


def script(name: str = "r") -> str:
    return Path(f"longhaul-slurm/{name}/job.sh").read_text(encoding="utf-8")


def directives(name: str = "r") -> list[str]:
    return [line for line in script(name).splitlines() if line.startswith("#SBATCH")]


def has_sbatch(text: str) -> None:
    path = Path("bin/sbatch")
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def test_the_script_of_a_run_is_the_one_that_was_reviewed(golden: Golden, tmp_path: Path) -> None:
    assert slurm(RUN, "--nodes", "2", "--gpus", "8", "--time", "1-0", "--python", "/opt/lh/bin/python3") == 0
    text = script().replace(str(tmp_path), "/home/me").replace(str(Path(__file__).parents[3]), "/opt/lh/tree")
    golden("slurm_job.sh", re.sub(r"r\.[0-9a-f]{6}", "r.abc123", text))


def test_a_job_for_two_vendors_has_a_part_for_each() -> None:
    text = SWEEP + "groups: [nvidia, amd]\n"
    groups = ("--group", "nvidia=-p h100", "--group", "amd=-p mi300 --nodes=3")
    assert slurm(text, "--sbatch=--account=me", *groups) == 0
    *_, time, first, between, _, second = directives("s")
    assert (time, between) == ("#SBATCH --account=me", "#SBATCH hetjob")
    assert first.endswith(" -p h100")
    assert second.endswith(" -p mi300 --nodes=3")
    assert variables_of(script("s"), ["NODE_GROUPS"]) == ["nvidia", "amd"]
    assert "singleton" not in script("s").partition("set -uo")[0]


def test_jobs_of_one_run_take_turns_and_those_of_another_store_do_not_wait() -> None:
    names = []
    for store in ("one", "one", "s3://bucket/other"):
        slurm(RUN, "--store", store)
        assert "#SBATCH --dependency=singleton" in directives()
        names.append(next(line for line in directives() if "--job-name" in line))
    assert names[0] == names[1] != names[2]


def test_a_relative_store_starts_where_the_job_was_written(tmp_path: Path) -> None:
    slurm(RUN, "--store", "below/st ore")
    assert variables_of(script(), ["STORE"]) == [str(tmp_path / "below/st ore")]


def test_hostile_places_and_words_reach_bash_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'it\'s "a"\n$(touch wrong) %j'
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert slurm(RUN + "# it's `touch wrong`\n", "--set", "environment.A='$(touch wrong)'") == 0
    directory, spec, *arguments = variables_of(script(), ["DIRECTORY", "SPEC", "ARGUMENTS"])
    assert directory == str(folder)
    assert spec == RUN + "# it's `touch wrong`"
    assert arguments[-1] == "environment.A='$(touch wrong)'"
    assert not [line for line in directives() if "touch" in line]
    assert not (folder / "wrong").exists()


def test_with_a_secret_among_them_settings_are_no_arguments(tmp_path: Path) -> None:
    asked = ("environment.API_KEY=wandb-nobody", "environment.B=@b", "steps=4")
    own_file(tmp_path / "b")
    assert slurm(RUN, *(word for setting in asked for word in ("--set", setting))) == 0
    assert "--set" not in variables_of(script(), ["ARGUMENTS"])
    assert variables_of(script(), ["SETTINGS"]) == [
        *("environment.API_KEY", "wandb-nobody", "environment.B", f"@{tmp_path / 'b'}", "steps", "4")
    ]


def test_without_a_secret_they_are_and_files_are_named_from_the_root(tmp_path: Path) -> None:
    own_file(tmp_path / "b")
    assert slurm(RUN, "--set", "environment.B=@b", "--set", "steps=4") == 0
    assert "readonly SETTINGS=()" in script()
    assert variables_of(script(), ["ARGUMENTS"])[-4:] == [
        *("--set", f"environment.B=@{tmp_path / 'b'}", "--set", "steps=4")
    ]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--run", "a b"), "--run: 'a b' is not a name"),
        (("--run", "r\n#SBATCH --wrap=id"), "--run: "),
        (("--time", "0"), "--time: 0 is 0 s; expected a minute to a year"),
        (("--group", "gpu=-p x"), "--group: the spec wants 'local', found gpu"),
        (("--group", "local=-p x", "--group", "local=-p y"), "--group local: is given twice"),
        (("--group", "a b=-p x"), "--group: 'a b' is not a name"),
        (("--sbatch", "gpu"), "--sbatch: found 'gpu', expected options of sbatch"),
        (("--container", "x.sif", "--store", "/a:b"), "--container: '/a:b' has : or ,"),
        (("--set", "stepps=3"), "--set stepps: is not a key here"),
        (("--to", "spec.yaml/below"), "--to: "),
        (("--submit",), "--submit: there is no sbatch on PATH"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slurm(RUN, *flags) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"longhaul slurm: {says}")


def test_a_sweep_of_several_groups_needs_the_nodes_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert slurm(SWEEP + "groups: [nvidia, amd]\n") == 2
    assert "give each its nodes by --group NAME=OPTIONS" in capsys.readouterr().err


def test_a_run_of_several_groups_needs_the_nodes_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    text = RUN + "group: [nvidia, amd]\n"
    assert slurm(text) == 2
    assert "say by --group which one this job's nodes are" in capsys.readouterr().err
    assert slurm(text, "--group", "intel=-p x") == 2
    assert "the spec wants 'nvidia', found intel" in capsys.readouterr().err
    assert slurm(text, "--group", "amd=-p mi300") == 0
    assert variables_of(script(), ["NODE_GROUPS"]) == ["amd"]


def test_without_submit_the_next_command_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slurm(RUN)
    folder = tmp_path / "longhaul-slurm/r"
    assert capsys.readouterr().out == (f"r: wrote {folder}/job.sh\nsubmit it: cd {folder} && sbatch job.sh\n")


def test_what_is_written_is_closed_to_others_also_in_a_folder_that_was_open(tmp_path: Path) -> None:
    Path("open").mkdir(mode=0o755)
    slurm(RUN, "--to", "open")
    assert stat.S_IMODE(Path("open").stat().st_mode) == 0o700
    assert stat.S_IMODE(Path("open/job.sh").stat().st_mode) == 0o600
    assert [path.name for path in Path("open").iterdir()] == ["job.sh"]


def test_what_others_put_into_an_open_folder_first_is_neither_written_to_nor_read(tmp_path: Path) -> None:
    """The script has secrets in it, and a process's number can be foreseen."""
    folder, victim, theirs = tmp_path / "longhaul-slurm/r", tmp_path / "victim", tmp_path / "theirs"
    folder.mkdir(parents=True, mode=0o777)
    victim.write_text("mine alone", encoding="utf-8")
    theirs.touch(mode=0o666)
    for planted, target in ((f"job.sh.{os.getpid()}", victim), ("job.sh", theirs)):
        (folder / planted).symlink_to(target)
    with theirs.open(encoding="utf-8") as kept_open:
        assert slurm(RUN, "--set", "environment.API_KEY=hunter2", "--nodes", "1", "--gpus", "2") == 0
        assert kept_open.read() == ""
    assert victim.read_text(encoding="utf-8") == "mine alone"
    assert "hunter2" in script()
    assert not (folder / "job.sh").is_symlink()


@needs_root
def test_a_folder_of_another_user_who_could_exchange_the_script_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "longhaul-slurm/r"
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY, NOBODY)
    assert slurm(RUN, "--nodes", "1", "--gpus", "2") == 2
    assert "longhaul-slurm/r belongs to user 65534, who could exchange" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_submitted_job_is_told_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    has_sbatch('echo "$*" "$PWD" "$(umask)" > asked; echo "42;cluster"')
    assert slurm(RUN, "--submit", "--json") == 0
    told = checked("slurm", capsys.readouterr().out)
    folder = tmp_path / "longhaul-slurm/r"
    assert told["job_id"] == "42"
    assert told["log"] == f"{folder}/{told['job_name']}-42.log"
    assert (folder / "asked").read_text(encoding="utf-8") == f"--parsable job.sh {folder} 0077\n"


def test_a_job_that_slurm_refuses_is_one_line_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    has_sbatch("echo 'sbatch: error: invalid partition' >&2; exit 1")
    assert slurm(RUN, "--submit") == 1
    assert "Slurm did not take" in (said := capsys.readouterr().err)
    assert "invalid partition" in said
    assert said.count("\n") == 1


def test_a_spec_with_the_line_ends_of_windows_makes_a_script_that_sbatch_takes() -> None:
    slurm(RUN.replace("\n", "\r\n"))
    assert b"\r" not in Path("longhaul-slurm/r/job.sh").read_bytes()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    slurm(RUN)
    place = Path("longhaul-slurm/r/job.sh")
    done = subprocess.run(
        ["shellcheck", place], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.stdout == ""


ROOT = Path(__file__).parents[3]
IN_DOCS = {
    (page.name, words)
    for page in (*ROOT.glob("docs/*.md"), ROOT / "README.md")
    for words in re.findall(
        r"^longhaul slurm (jobs/specs/.*)$",
        page.read_text(encoding="utf-8").replace("\\\n", ""),
        re.MULTILINE,
    )
}


@pytest.mark.parametrize(("page", "words"), sorted(IN_DOCS))
def test_each_command_of_the_docs_with_a_spec_of_ours_is_taken(
    page: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    has_sbatch("echo 7")
    monkeypatch.chdir(ROOT)
    assert main(["slurm", *shlex.split(words, comments=True), "--to", str(tmp_path / "to")]) == 0


def test_the_docs_show_some_such_command() -> None:
    assert {page for page, _ in IN_DOCS} == {"quickstarts.md", "slurm.md"}
