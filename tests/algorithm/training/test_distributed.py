"""Several processes on this machine give the result of one; a process that is lost ends the run with a word of advice."""

import os
import re
import signal
import socket

import numpy as np
import pytest
import torch as th
import torch.distributed as dist

import sb3_nopg.bellman.transition
from helpers import shared_runs
from helpers.documentation import blocks
from helpers.long_runs import build, pushed_point
from helpers.repository import REPOSITORY
from helpers.shared_runs import CASES_OF, N, launch, start
from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.common.processes import Processes, ProcessLostError
from sb3_nopg.training.distributed import process_group


@pytest.mark.slow
@pytest.mark.parametrize("n_processes", [2, 4])
def test_several_processes_give_the_result_of_one(tmp_path, capfd, n_processes):
    code = start(n_processes, shared_runs.run, "compare", str(tmp_path))
    assert code == 0, capfd.readouterr().err
    for case in CASES_OF[n_processes]:
        shared = np.load(tmp_path / f"{case}.npz")
        for name, alone in shared_runs.results(case, distributed=False).items():
            np.testing.assert_allclose(
                shared[name], alone, rtol=1e-6, atol=1e-6 * max(1e-3, np.abs(alone).max()), err_msg=f"{case}, {name}"
            )


@pytest.mark.slow
def test_the_script_of_the_page_runs(tmp_path, capfd):
    (script,) = [block for block in blocks((REPOSITORY / "docs" / "scale.md").read_text(), "{code-block} python")]
    data = pushed_point(N)
    timeouts = np.arange(N) % 10 == 9
    TransitionDataset(
        data.observations, data.actions, data.rewards, data.next_observations, data.terminals, timeouts & ~data.terminals
    ).save(tmp_path / "data.npz")
    (tmp_path / "shared.py").write_text(script.replace("500", "3"))
    code = start(2, shared_runs.run_script, str(tmp_path / "shared.py"))
    assert code == 0, capfd.readouterr().err
    assert NOPG.load(tmp_path / "model", device="cpu").num_timesteps == 3
    assert (tmp_path / "run.ckpt").is_file()


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_run_with_a_message_and_a_checkpoint(tmp_path, capfd):
    assert launch(2, shared_runs.run, "lose_one", str(tmp_path)) != 0
    told = capfd.readouterr().err
    # Told, unless torchrun itself was slow.
    assert re.search("Process 0 of 2 (was told to end|lost contact with another one)", told), told
    assert f"Resume from {tmp_path / 'run.ckpt'}" in told
    assert "SIGKILL" in told
    resumed = NOPG.resume(tmp_path / "run.ckpt", pushed_point(N), device="cpu")
    assert resumed.num_timesteps == 20
    resumed.learn(5, reset_num_timesteps=False)
    reference = build(pushed_point(N)).learn(25, callback=None)
    assert resumed.estimated_return() == pytest.approx(reference.estimated_return(), rel=1e-6)


def test_a_process_that_is_told_to_end_says_why_at_its_next_exchange(monkeypatch):
    monkeypatch.setattr(Processes, "told_to_end", True)
    processes = Processes(0, 2)
    processes.last_checkpoint = "run.ckpt"
    with pytest.raises(ProcessLostError, match=r"Process 0 of 2 was told to end \(SIGTERM\).* Resume from run\.ckpt\."):
        processes.sum(th.ones(1))


@pytest.fixture
def group_of_one(monkeypatch):
    """The environment that torchrun would set up."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Processes, "told_to_end", False)


def test_a_signal_to_end_is_kept_until_the_group_is_left(group_of_one, monkeypatch):
    monkeypatch.setattr(Processes, "several", True)
    raised: list[int] = []
    monkeypatch.setattr("sb3_nopg.training.distributed.signal.raise_signal", raised.append)
    with process_group("cpu"):
        os.kill(os.getpid(), signal.SIGTERM)
        assert Processes.told_to_end
        assert raised == []
    assert raised == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_signal_is_not_kept(group_of_one, monkeypatch):
    monkeypatch.setattr(Processes, "several", True)
    raised: list[int] = []
    monkeypatch.setattr("sb3_nopg.training.distributed.signal.raise_signal", raised.append)
    with process_group("cpu"):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert raised == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_error_does_not_keep_a_later_group_from_starting_anew(group_of_one, monkeypatch):
    monkeypatch.setattr(Processes, "several", True)

    def told_and_failed() -> None:
        with process_group("cpu"):
            os.kill(os.getpid(), signal.SIGTERM)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        told_and_failed()
    dist.destroy_process_group()
    with process_group("cpu") as processes:
        assert float(processes.sum(th.ones(1))) == 1.0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_group_without_exchange_leaves_the_signal_alone(group_of_one):
    with process_group("cpu"):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_group_leaves_a_signal_to_those_who_handle_it_themselves(group_of_one):
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with process_group("cpu"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        assert not Processes.told_to_end
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_a_process_that_does_not_answer_counts_as_lost_after_a_while(tmp_path, capfd):
    assert start(2, shared_runs.run, "wait_in_vain", str(tmp_path)) == 1
    told = capfd.readouterr().err
    assert "Process 0 of 2 lost contact" in told
    assert "NOPGCheckpointCallback would write some" in told


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::tqdm.TqdmExperimentalWarning")
def test_who_does_what(tmp_path, capfd):
    code = start(2, shared_runs.run, "behave", str(tmp_path))
    told = capfd.readouterr()
    assert code == 0, told.err
    saw = [np.load(tmp_path / f"saw-{rank}.npz") for rank in range(2)]
    # Any process may end the training of all; parameters are the same, and rows are shared.
    assert [int(one["updates"]) for one in saw] == [5, 5]
    assert saw[0]["parameters"] == saw[1]["parameters"]
    assert [int(one["rows"]) for one in saw] == [46, 45]
    # The main process writes.
    assert told.out.count("total_timesteps") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"model-0.zip", "run-0.ckpt", "saw-0.npz", "saw-1.npz"}
    assert NOPG.load(tmp_path / "model-0.zip", device="cpu").distributed is False
    for one in saw:
        assert int(one["same circumstances"]) == 6
        assert bool(one["resumed like"])
        assert str(one["other data"]).startswith("dataset: process 1 has another one than process 0")
        assert "one process only" in str(one["exit"])
        assert str(one["other settings"]).startswith("gamma: process 1")
        assert str(one["other policy"]).startswith("policy: process 1")


def test_a_group_needs_processes_to_join(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(InputError, match=r"RANK.*torchrun"), process_group():
        pass
    with pytest.raises(InputError, match="timeout_s"), process_group(timeout_s=0.0):
        pass
    with pytest.raises(InputError, match=r"distributed: .*process_group"):
        build(pushed_point(), distributed=True)


@pytest.mark.parametrize(("n_rows", "n_processes"), [(10, 1), (10, 2), (10, 4), (91, 4), (3, 4), (8, 4)])
def test_every_row_belongs_to_one_process(n_rows, n_processes):
    rows = th.arange(n_rows)
    shares = [Processes(rank, n_processes).own(rows) for rank in range(n_processes)]
    assert th.equal(th.cat(shares), rows)
    assert max(map(len, shares)) == Processes(0, n_processes).block_size(n_rows)


def test_no_process_is_left_without_rows():
    Processes(0, 4).check_rows(10)
    with pytest.raises(InputError, match="9 transitions for 4 processes"):
        Processes(0, 4).check_rows(9)


def test_more_entries_than_can_be_counted_are_refused(monkeypatch):
    monkeypatch.setattr(sb3_nopg.bellman.transition, "_MAX_ENTRIES", 1000)
    with pytest.raises(InputError, match=r"n_neighbors: 1600 entries .* more processes"):
        _ = build(pushed_point(80), n_neighbors=20).estimator.problem
    _ = build(pushed_point(80), n_neighbors=12).estimator.problem
