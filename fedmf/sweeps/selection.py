"""Private selection, a sweep that trains a random number of trials and keeps the best one only. One
guarantee covers the choice (`fedmf.private_selection`).

  selection.json   the procedure, and whether it has ended; mode 0600
  selected/        the run's folder of the selected trial, at the end
  report/          `fedmf report` of it
  private/         mode 0700, until the end: draw.json with the noise secret and the drawn settings,
                   and the folders, logs and seeds of all trials

The draw is committed before the first trial, and nothing but private/ depends on the number of
trials. At the end the selected trial is copied, selection.json records the end, and then private/
is deleted. Each step can be repeated after a crash.

The guarantee holds for the drawn number of trials, and not for a number that depends on when a disk
was full or a package was updated. So every command first trains the first rounds of a run, and is
refused if these fail or differ from those before the draw. A trial counts as failed if it fails
twice, the second time alone, and the first rounds succeed after each failure.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedmf import strict_json
from fedmf.files import (
    lock,
    make_folder,
    sync_names,
    write_atomically,
    write_exclusively,
)
from fedmf.privacy.flat_config import differences
from fedmf.reports import write_report
from fedmf.reports.groups import private_curve
from fedmf.runs.folder import Run
from fedmf.runs.reading import read_object
from fedmf.runs.selection import DRAW, SELECTED, SELECTION
from fedmf.server.source import check_noise_seed
from fedmf.sweeps import draws, first_rounds
from fedmf.sweeps import run as driver
from fedmf.sweeps.first_rounds import Forecast
from fedmf.sweeps.folder import state, writing
from fedmf.sweeps.grid import sweep_config
from fedmf.sweeps.runs import prepare, run_folder
from fedmf.sweeps.selection_space import CommonFacts, SelectionSpace, TaskFacts


def run_selection(
    out: pathlib.Path,
    space: SelectionSpace,
    options: driver.SweepOptions,
    *,
    confirm: Callable[[Forecast], None] = lambda forecast: None,
) -> dict[str, Any]:
    """Runs a private selection, or resumes it, and returns its result.

    Args:
      out: folder of the selection; made if needed.
      space: settings of the trials, with the number of trials.
      options: options of the sweep.
      confirm: called before the draw; an exception in it leaves nothing drawn.

    Returns:
      {"model": folder of the selected run or None, "report": path or None, "epsilon", "delta": of
      the selection, "text": for people, "failed": {}}.

    Raises:
      ValueError: the folder holds another selection, or one that ended without a model; a trial
        cannot be trained, or not as the earlier ones were; or the task does not declare who is in
        its validation split.
      StoppedSweep: Ctrl-C; the trials have saved their rounds.
    """
    with _locked(out):
        _check_procedure(out, space)
        if not _has_ended(out):
            draw_file = out / "private" / DRAW
            estimate = first_rounds.selection_forecast(out, space, options)
            assert estimate.common is not None
            if not draw_file.exists():
                confirm(estimate)
                _draw(out, space, options, estimate.common)
            try:
                _Selection(out, space, options, estimate.common).run()
            except OSError as error:
                # The path of the error would tell the index of a trial.
                raise ValueError(
                    f"cannot read or write {out / 'private'} ({error.strerror}): no trial counts "
                    "as failed; give the same command again when this is solved"
                ) from None
        _delete_trials(out / "private")
        return _result(out)


def _delete_trials(folder: pathlib.Path) -> None:
    """Deletes the folder that holds all trials."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ValueError(
            f"cannot delete {folder} ({error.strerror}), which holds the trials that were not "
            "selected: delete it, and give the same command again"
        ) from error


@contextlib.contextmanager
def _locked(out: pathlib.Path) -> Iterator[None]:
    """Locks the folder of a selection for this process."""
    try:
        make_folder(out / "private")
    except OSError as error:
        raise ValueError(
            f"cannot write to folder {out} ({error.strerror}): name a folder you may write to"
        ) from error
    folder_lock = lock(out)
    if folder_lock is None:
        raise ValueError(f"another process runs the selection in {out}: wait until it has ended")
    try:
        yield
    finally:
        folder_lock.release()


def _procedure(out: pathlib.Path) -> dict[str, Any]:
    """Returns the contents of selection.json; empty before the draw."""
    path = out / SELECTION
    return read_object(path) if path.exists() else {}


def _has_ended(out: pathlib.Path) -> bool:
    """Returns whether the selection in a folder has ended."""
    return bool(_procedure(out).get("ended", False))


def _check_procedure(out: pathlib.Path, space: SelectionSpace) -> None:
    """Raises ValueError unless a folder is new, or holds the begun selection of this space."""
    draw_file = out / "private" / DRAW
    recorded = _procedure(out)
    if draw_file.exists():
        recorded = read_object(draw_file)
    elif recorded and not recorded["ended"]:
        raise ValueError(
            f"{out} holds a selection without its private/{DRAW}: it cannot be resumed, and to "
            "draw again would break its guarantee; name another folder"
        )
    elif not recorded and any((out / name).exists() for name in ("runs", "private/runs", SELECTED)):
        raise ValueError(f"{out} holds runs already: name a new folder for a private selection")
    if recorded:
        changes = differences(space.record(), recorded["procedure"], was="it was begun with")
        if changes:
            raise ValueError(
                f"{out} holds another selection, with {changes}: give the command with which it "
                "was begun; a selection can be neither cut short nor extended"
            )


def _draw(
    out: pathlib.Path, space: SelectionSpace, options: driver.SweepOptions, common: CommonFacts
) -> None:
    """Draws the number of trials and their settings, and commits both before the first trial."""
    noise_seed = check_noise_seed(options.noise_seed)
    # Another selection with the same number as its noise seed has other noise, and nobody who
    # guesses the number can check it by the files of the selected trial.
    salt = secrets.randbits(256)
    procedure_text = strict_json.dumps(space.record())
    noise_secret = draws.selection_secret(noise_seed, salt, procedure_text)
    choices = [run.chosen for run in space.runs]
    settings = [
        draws.draw_setting(noise_secret, trial_index, choices, space.varied)
        for trial_index in range(draws.num_trials(noise_secret, space.trials))
    ]
    content = {
        "procedure": space.record(),
        "noise_seed": str(noise_seed),
        "noise_secret": str(noise_secret),
        "common": dataclasses.asdict(common),
        "settings": settings,
    }
    draw_text = strict_json.dumps(content, indent=2) + "\n"
    write_exclusively(out / "private" / DRAW, draw_text, mode=0o600)
    sync_names(out)


class _Selection:
    """A drawn private selection.

    Args:
      out: folder of the selection.
      space: settings of the trials.
      options: options of the sweep.
      common: facts that the first rounds of this command have shown.

    Raises:
      ValueError: they are not those before the draw, or the noise seed is another one.
    """

    def __init__(
        self,
        out: pathlib.Path,
        space: SelectionSpace,
        options: driver.SweepOptions,
        common: CommonFacts,
    ) -> None:
        self._out = out
        self._space = space
        self._private = out / "private"
        content = read_object(self._private / DRAW)
        self._noise_secret = int(content["noise_secret"])
        self._settings: list[dict[str, Any]] = content["settings"]
        self._common = CommonFacts.from_record(content["common"])
        if options.noise_seed not in ("os", int(content["noise_seed"])):
            raise ValueError(
                f"`noise_seed` is not the one of the selection in {out}, which keeps its own: give "
                "the same, or os"
            )
        self._check_common(common)
        # A bar would tell how many trials there are. In one process, state of a task could make
        # trials depend on each other.
        self._options = dataclasses.replace(options, progress=False, shares_processes=False)

    def run(self) -> None:
        """Trains all trials that have not ended, selects one, and records the end."""
        procedure = {
            "procedure": self._space.record(),
            "score": self._space.score,
            "varied": list(self._space.varied),
        }
        _write_procedure(self._out, procedure | {"ended": False})
        self._train()
        selected_index = draws.selected_trial(self._noise_secret, self._scores())
        if selected_index is not None:
            self._publish(run_folder(self._private, _name(selected_index)))
        model = None if selected_index is None else SELECTED
        outcome = {"ended": True, "model": model, "drew_trials": bool(self._settings)}
        _write_procedure(self._out, procedure | outcome)

    def _check_common(self, common: CommonFacts) -> None:
        """Raises ValueError unless trials would now be trained as before the draw."""
        change = common.change_from(self._common)
        if change is not None:
            raise ValueError(
                f"the selection in {self._out} was begun otherwise: this command has {change}; all "
                "trials need the same, so put it back, and no trial counts as failed"
            )

    def _train(self) -> None:
        """Trains all trials that have not ended. A trial that fails is trained again once, if the
        first rounds show that trials can still be trained. It has failed if they show it after its
        second failure too.
        """
        try:
            failed_names = self._failed_names(self._unfinished_names(), self._options)
            if failed_names:
                self._check_first_rounds()
            # Trials that train at the same time may lack memory that each of them alone has.
            alone = dataclasses.replace(self._options, jobs=1)
            for name in failed_names:
                if self._failed_names([name], alone):
                    self._check_first_rounds()
                    self._mark_failed(name)
        except driver.StoppedSweep:
            raise driver.StoppedSweep(
                "interrupted: the trials are stopped and saved: give the same command again to "
                "resume"
            ) from None

    def _check_first_rounds(self) -> None:
        """Raises ValueError unless trials can now be trained, and as before the draw."""
        _, common = first_rounds.train_first_rounds(self._out, self._space, self._options)
        self._check_common(common)

    def _unfinished_names(self) -> list[str]:
        """Returns the names of all trials that have not ended."""
        names = map(_name, range(len(self._settings)))
        return [
            name
            for name in names
            if state(self._private, name) != "finished" and not self._has_failed(name)
        ]

    def _failed_names(self, names: list[str], options: driver.SweepOptions) -> list[str]:
        """Trains some trials, and returns the names of those that fail."""
        failures: dict[str, driver.Failure] = {}
        prepared_names = self._prepared_names(names, failures)
        for _ in driver.iter_finished_runs(self._private, prepared_names, options, failures):
            pass
        return [name for name in failures if state(self._private, name) != "finished"]

    def _prepared_names(
        self, names: list[str], failures: dict[str, driver.Failure]
    ) -> Iterator[str]:
        """Yields the name of each trial after writing what it begins with.

        Trials whose drawn values make no valid configuration are added to `failures`.
        """
        for name in names:
            trial_index = int(name.partition("/")[0])
            seeds = draws.TrialSeeds.of(self._noise_secret, trial_index)
            try:
                _, config = sweep_config(
                    {**self._space.fixed, "seed": seeds.public}, self._settings[trial_index]
                )
            except ValueError as error:
                failures[name] = driver.Failure(driver.BAD_ARGUMENTS, str(error))
                continue
            with writing(self._private):
                prepare(self._private, name, config, seeds.noise)
            yield name

    def _failure_file(self, name: str) -> pathlib.Path:
        """Returns the path of the file that marks a trial as failed."""
        return self._private / "failed" / name.partition("/")[0]

    def _has_failed(self, name: str) -> bool:
        return self._failure_file(name).exists()

    def _mark_failed(self, name: str) -> None:
        make_folder(self._private / "failed")
        write_atomically(self._failure_file(name), "", mode=0o600)

    def _scores(self) -> list[float]:
        """Returns the scores of all trials, NaN for those that failed."""
        scores = []
        digest_by_file: dict[str, str] = {}
        for trial_index in range(len(self._settings)):
            name = _name(trial_index)
            score = math.nan
            if not self._has_failed(name):
                score = self._score(self._finished_run(name), digest_by_file)
            scores.append(score)
        return scores

    def _finished_run(self, name: str) -> Run:
        """Reads the folder of a finished trial.

        Raises:
          ValueError: it is damaged. The message does not name it, since that would tell the index
            of a trial.
        """
        try:
            return Run.load(run_folder(self._private, name))
        except ValueError:
            raise ValueError(
                f"the folder of a trial in {self._private} is damaged: put it back as it was, and "
                "give the same command again; no trial counts as failed"
            ) from None

    def _score(self, run: Run, digest_by_file: dict[str, str]) -> float:
        """Returns the score of a finished trial.

        Args:
          run: the trial.
          digest_by_file: path of a mechanism's file -> digest of its mechanism in earlier trials;
            that of this trial is added.

        Raises:
          ValueError: it was trained on other data than the first rounds, with other packages, on a
            task that declares other validation clients, or with another mechanism of the same file
            than an earlier trial.
        """
        facts = TaskFacts.of(run)
        # plan.json of the selected trial would tell when it was trained.
        has_same_versions = run.plan["versions"] == self._common.versions
        mechanism_digest = run.plan["mechanism_sha256"]
        has_same_file = True
        if run.config.mechanism is not None:
            first_digest = digest_by_file.setdefault(run.config.mechanism, mechanism_digest)
            has_same_file = first_digest == mechanism_digest
        is_unchanged = facts == self._common.task and has_same_versions and has_same_file
        if not is_unchanged or not self._space.may_score(facts):
            raise ValueError(
                f"the data, packages or mechanism files of the selection in {self._out} changed "
                "while its trials trained, so that it cannot end: nothing of it was released, and "
                "a selection in another folder has the whole guarantee, which adds up with others"
            )
        return trial_score(run)

    def _publish(self, folder: pathlib.Path) -> None:
        """Copies the folder of the selected trial to its public place. New files carry no time of
        the trial, neither of their creation nor of their last change.
        """
        if (self._out / SELECTED).exists():
            return  # The process ended after it had published the same trial.
        copy = self._private / "published"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.part"))
        now = time.time_ns()
        for path in (copy, *copy.rglob("*")):
            os.utime(path, ns=(now, now))
        os.rename(copy, self._out / SELECTED)
        sync_names(self._out)


def _name(trial_index: int) -> str:
    """Returns the name of a trial's run. Its last part is the same for all trials, since files of a
    run contain the name of its folder.
    """
    return f"{trial_index}/{SELECTED}"


def trial_score(run: Run) -> float:
    """Returns the score of a finished trial, of which a larger one is better; NaN if its model
    diverged.

    It is minus the loss: the last private one if the run has private metrics, else that of the
    validation. Both, and the weights, are released values.
    """
    if not all(np.isfinite(weight).all() for weight in run.weights):
        return math.nan
    assert run.result is not None
    if run.config.private_metrics:
        loss = next(iter(private_curve(run, "loss").means[::-1]), math.nan)
    else:
        loss = run.result["validation"].get("loss")
    if loss is None or not math.isfinite(loss):
        return math.nan
    return -float(loss)


def _write_procedure(out: pathlib.Path, content: dict[str, Any]) -> None:
    """Writes selection.json."""
    write_atomically(out / SELECTION, strict_json.dumps(content, indent=2) + "\n", mode=0o600)
    sync_names(out)


def _result(out: pathlib.Path) -> dict[str, Any]:
    """Returns the result of a selection that has ended.

    Raises:
      ValueError: it ended without a model.
    """
    procedure = _procedure(out)
    if procedure["model"] is None:
        reason = "no trial ended with a model"
        if not procedure["drew_trials"]:
            chance_text = f"{math.exp(-procedure['procedure']['mean_trials']):.2g}"
            reason = f"the drawn number of trials is 0, which has probability {chance_text}"
        raise ValueError(
            f"the selection in {out} released no model, because {reason}: to draw again would "
            "break its guarantee, and a selection in another folder has one of its own, which adds "
            "to it"
        )
    run = Run.load(out / SELECTED)
    assert run.result is not None
    report_path = write_report([run], out / "report", title=f"fedmf private selection {out.name}")
    chosen_texts = [f"{name}={run.config.flat().get(name)}" for name in procedure["varied"]]
    metric = run.plan["task"]["headline_metric"]
    metric_texts = [
        f"{split} {metric} {run.result[split][metric]:.4f}"
        for split in ("validation", "test")
        if run.result[split]
    ]
    text = (
        f"selected by {procedure['score']}: {', '.join(chosen_texts)}\n{', '.join(metric_texts)}\n"
        f"epsilon {run.plan['epsilon']:.6g} at delta {run.plan['delta']:g}, the choice included\n"
        f"open {report_path}"
    )
    return {
        "model": str(run.path),
        "report": str(report_path),
        "epsilon": run.plan["epsilon"],
        "delta": run.plan["delta"],
        "text": text,
        "failed": {},
    }
