"""Who a process is, from what torchrun, PyTorchJob and Slurm set; and which options and steps several processes refuse."""

from __future__ import annotations

from typing import Any

import pytest

from models import small_recipe
from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.parallel.environment import Machines, Place, alone, first, first_host, machines, place
from toolkit.preflight.shares import require_shares

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1234",
}  # fmt: skip
PYTORCHJOB = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
SRUN = {
    "SLURM_JOB_ID": "1000017", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "gpu[03-04]",
}  # fmt: skip
SBATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def test_alone_nothing_is_said() -> None:
    assert place({}) == Place() and first({}) and machines({}) == Machines()


def test_torchruns_variables_are_taken() -> None:
    assert place(TORCHRUN) == Place(3, 4, 1, 2, "a", 1234) and not first(TORCHRUN)
    assert place(TORCHRUN).variables() == TORCHRUN


def test_pytorchjob_starts_one_process_a_pod() -> None:
    assert place(PYTORCHJOB) == Place(1, 3, 0, 1, "job-master-0", 23456)
    assert machines(PYTORCHJOB) == Machines(3, 1, "job-master-0", 23456)


def test_pytorchjob_with_processes_of_its_own_speaks_torchruns_language() -> None:
    said = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "29400"}
    assert machines(said) == Machines(2, 1, "m", 29400)


def test_a_task_of_srun_is_a_process() -> None:
    assert place(SRUN) == Place(5, 8, 1, 4, "gpu03", 20_017)


def test_one_task_a_node_may_start_processes_itself() -> None:
    one_each = SRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert machines(one_each) == Machines(2, 1, "gpu03", 20_017)
    assert machines(SRUN) == Machines()


def test_a_batch_script_is_no_task_of_a_step() -> None:
    assert place(SBATCH) == Place() and machines(SBATCH) == Machines()


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu03", "gpu03"), ("gpu[03-07,9],cpu1", "gpu03"), ("a1,a2", "a1"), ("n[1,5]-ib", "n1-ib"), ("rack-2-[007]", "rack-2-007")],
)  # fmt: skip
def test_the_first_host_of_a_folded_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "count from 0"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "no number"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_PROCID"),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, "MASTER_ADDR"),
    ],
)
def test_half_an_environment_is_an_error_that_names_the_variable(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        place(environ)
    assert said in str(caught.value) and caught.value.hint


def test_what_follows_a_training_is_alone_again() -> None:
    assert alone(TORCHRUN | SRUN | {"HOME": "/h"}).keys() & (TORCHRUN.keys() | {"HOME"}) <= {"HOME"}
    assert place(alone(TORCHRUN)) == place(alone(SRUN)) == Place()


@pytest.mark.parametrize(
    ("sections", "processes", "said", "way_out"),
    [
        ({"grpo": {"prompts_per_step": 6}}, 4, "6 prompts", "grpo.prompts_per_step=4 or grpo.prompts_per_step=8; or 2, 3, 6"),
        ({"grpo": {"prompts_per_step": 4}, "warmup": {"batch_size": 6}}, 4, "warm-up step of 6", "warmup.batch_size=8"),
        ({"grpo": {"prompts_per_step": 4, "per_device_train_batch_size": 8}, "warmup": None}, 4, "passes of 8", "=null"),
        ({"grpo": {"resample_rounds": 1}}, 2, "one process only", "grpo.resample_rounds=0"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_be_shared_names_what_can(
    sections: dict[str, Any], processes: int, said: str, way_out: str
) -> None:
    recipe = small_recipe("org/model", **sections)
    require_shares(recipe, 1)
    with pytest.raises(ToolkitError) as caught:
        require_shares(recipe, processes)
    assert said in caught.value.message and way_out in str(caught.value.hint)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--machines", "2", "--rank", "0"], "--address"),
        (["--machines", "2"], "--rank and --address"),
        (["--rank", "1"], "belong to --machines"),
        (["--machines", "2", "--rank", "2", "--address", "a"], "count from 0"),
        (["--machines", "2", "--rank", "1", "--address", "a:b"], "HOST:PORT"),
        (["--processes", "0"], "from 1 on"),
        (["--processes", "3"], "cannot share"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "smoke", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())
