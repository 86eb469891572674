"""A callback that records a run in Weights & Biases, offline."""

import os
import pathlib
import secrets
import shutil
from collections.abc import Mapping
from typing import Any

from fedmf.files import checked_path, make_folder
from fedmf.trackers.base import Tracker
from fedmf.training.under_way import Training


class WandB(Tracker):
    """A callback that records a run in Weights & Biases offline: `pip install 'fedmf[wandb]'`.

    It writes to a private folder, and sends nothing. `wandb sync` sends the folder, also the
    metrics that the guarantee does not cover: pass covered_only=True to leave them out.

    Weights & Biases would also record the command line, which may have a noise seed, the output of
    the program, the code and the machine. All of these are turned off.

    Args:
      folder: its folder; None for the folder wandb beside the run's folder.
      project: name of the project.
      covered_only: as of `Tracker`.

    Raises:
      ImportError: wandb is not installed.
    """

    name = "wandb"

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        project: str = "fedmf",
        covered_only: bool | None = None,
    ) -> None:
        super().__init__(covered_only=covered_only)
        # Without this setting, wandb sends reports of its own errors to another machine.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            import wandb
        except ImportError:
            raise ImportError(
                "tracker=wandb needs wandb, which is not installed: pip install 'fedmf[wandb]'"
            ) from None
        self._wandb = wandb
        self._folder = None if folder is None else checked_path("folder", folder)
        self._project = project

    def is_local(self) -> bool:
        """Returns True, because the run is offline."""
        return True

    def open(self, training: Training, run_id: str | None) -> str:
        """Opens the run of Weights & Biases, and returns its id."""
        run_folder = training.folder.path.absolute()
        wandb_folder = self._folder or run_folder.parent
        make_folder(wandb_folder / "wandb")
        self._run = self._wandb.init(
            project=self._project,
            name=run_folder.name,
            id=run_id or secrets.token_hex(8),
            mode="offline",
            dir=str(wandb_folder),
            reinit="create_new",
            save_code=False,
            settings=self._wandb.Settings(
                console="off",
                host="",
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        return str(self._run.id)

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Records the parameters of the run."""
        self._run.config.update(dict(parameters))

    def log_metrics(self, metrics: Mapping[str, float], t: int) -> None:
        """Records the metrics of round t."""
        self._run.log(dict(metrics), step=t)

    def log_file(self, path: pathlib.Path, folder: str) -> None:
        """Copies a file to the run of Weights & Biases."""
        target_path = pathlib.Path(self._run.dir) / folder / path.name
        make_folder(target_path.parent)
        shutil.copy(path, target_path)
        self._run.save(str(target_path), base_path=self._run.dir, policy="now")

    def close(self, *, is_finished: bool) -> None:
        """Ends the run of Weights & Biases."""
        self._run.finish(exit_code=0 if is_finished else 1)
