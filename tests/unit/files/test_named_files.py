"""A pipe that nobody writes to, or a device, where a user names a file: one line, and no wait."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpointing.stores.contract import StoreError
from checkpointing.stores.settings import check_settings
from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError
from cluster.probe.kernels.recorded import NotRecorded
from cluster.probe.kernels.recorded_file import in_file
from cluster.yaml_file import read_named
from jobs.commandline.set_values import value_text
from jobs.commandline.usage_error import SpecError
from jobs.packing.chat.template_file import read_template
from jobs.packing.pieces import InputError
from jobs.packing.tokenizing import read_recipe
from jobs.reports.import_results import import_results
from jobs.reports.prices_file import read_prices
from jobs.reports.yardstick import read_published
from jobs.slurm.work import read_work
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.sweep_spec import SweepSpec

READERS: dict[str, Callable[[Path], object]] = {
    "a sweep's spec": lambda path: SweepSpec.load(path, []),
    "a run's spec": lambda path: RunSpec.load(path, []),
    "a Slurm job's spec": lambda path: read_work(path, [], None),
    "a cluster file": read_cluster,
    "prices": read_prices,
    "published results": read_published,
    "the value of a setting": lambda path: value_text(f"@{path}", "--set"),
    "a tokenizer": lambda path: read_recipe(str(path), None),
    "a chat template": lambda path: read_template("bytes", str(path)),
    "recorded digests": in_file,
    "certificates": lambda path: check_settings("s3", {"AWS_CA_BUNDLE": str(path)}),
}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("what", READERS)
def test_a_pipe_without_a_writer_or_a_device_is_refused_in_one_line(what: str, pipe: Path) -> None:
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(
            (SpecError, ClusterError, InputError, StoreError, NotRecorded), match="no file"
        ) as refused:
            READERS[what](path)
        assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_so_is_a_mapping_of_an_import_and_what_is_to_be_imported(
    pipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"store": str(tmp_path / "store"), "group": None, "vendor": None, "json": False}
    for paths, mapping, says in (([tmp_path], pipe, "no file"), ([pipe], None, "no such file")):
        assert import_results(argparse.Namespace(paths=paths, mapping=mapping, **given)) != 0
        assert says in capsys.readouterr().err


def test_a_file_is_read_up_to_the_bound_and_one_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(path)
    assert read_named(tmp_path / "link", 10) == b"0123456789"
    assert read_named(path, 3) == b"0123"
    with pytest.raises(IsADirectoryError):
        read_named(tmp_path, 3)
