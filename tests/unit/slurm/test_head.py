"""What of a job's Ray needs no Ray to be seen."""

import shutil
import sys
from pathlib import Path

from cluster.slurm.head import own_scripts_first


def test_ray_is_found_beside_the_python_that_runs_where_path_has_another_or_none(tmp_path: Path) -> None:
    other = tmp_path / "ray"
    other.write_text("#!/bin/sh\n", encoding="utf-8")
    other.chmod(0o755)
    for path in ("/nowhere", str(tmp_path)):
        assert shutil.which("ray", path=own_scripts_first(path)) == str(Path(sys.prefix, "bin", "ray"))
