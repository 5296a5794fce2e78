"""`scs slurm`: the script it writes. tests/scale runs it on a real cluster."""

import shutil
import subprocess

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_script_runs_the_same_command_in_every_job(folder, scs):
    result = scs(
        *("slurm", "--tasks", "8", "--sbatch", "--gres=gpu:1 --time=4:00:00", "--no-submit"),
        *("compare", "my birds", "--methods", "all", "--set", "pretrain.lr=0.1"),
    )
    assert result.code == 0
    script = (folder / "scs-slurm.sh").read_text()
    assert "#SBATCH --array=1-8\n" in script
    assert "#SBATCH --gres=gpu:1\n#SBATCH --time=4:00:00\n" in script
    assert "-m scs_supcon compare 'my birds' --methods all --set pretrain.lr=0.1 &" in script
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n", "scs-slurm.sh"], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "run", "image.jpg"), "cannot run 'predict'"),
        (("--tasks", "2", "train", "birds"), "only compare, reproduce, tune, embed share"),
        (("--tasks", "2", "embed", "run", "images", "-o", "v.npz"), "add --parts FOLDER"),
        (("--sbatch", "gpu", "train", "birds"), "'gpu' is not an option"),
    ],
)
def test_what_cannot_work_is_rejected(scs, arguments, message):
    result = scs("slurm", "--no-submit", *arguments)
    assert result.code == 2
    assert message in result.err


def test_without_sbatch_the_script_is_written_and_the_command_to_submit_it_is_named(
    folder, scs, monkeypatch
):
    monkeypatch.setenv("PATH", "")
    result = scs("slurm", "train", "birds", "--out", "run")
    assert result.code == 2
    assert "run `sbatch scs-slurm.sh` on a machine of the cluster" in result.err
    assert (folder / "scs-slurm.sh").exists()


def test_the_option_slurm_submits_the_same_command_without_it(folder, scs, monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = scs("compare", "my birds", "--slurm", "3", "--methods", "all")
    assert result.code == 2
    assert "run `sbatch scs-slurm.sh`" in result.err
    script = (folder / "scs-slurm.sh").read_text()
    assert "#SBATCH --array=1-3\n" in script
    assert "-m scs_supcon compare 'my birds' --methods all &" in script
