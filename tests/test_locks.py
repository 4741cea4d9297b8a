import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sdgmnet import storage as locks
from sdgmnet.errors import InputError
from sdgmnet.storage import only_worker

HOLDER = (
    "import sys, time; from pathlib import Path; from sdgmnet.storage import only_worker\n"
    "with only_worker(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)
pytestmark = pytest.mark.skipif(locks.fcntl is None, reason="this system has no flock")


def test_a_second_process_is_told_and_a_kill_frees_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "scene"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(place)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another process is working on .*scene"), only_worker(place):
            pytest.fail("the folder was held")
        holder.kill()
        holder.wait()
    with only_worker(place):
        pass


def test_a_folder_removed_by_its_holder_is_held_anew(tmp_path: Path) -> None:
    with only_worker(tmp_path / "scene"):
        shutil.rmtree(tmp_path / "scene")
    with only_worker(tmp_path / "scene"), pytest.raises(InputError), only_worker(tmp_path / "scene"):
        pytest.fail("the folder was held")


def test_without_locks_the_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    with only_worker(tmp_path / "new"), only_worker(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
