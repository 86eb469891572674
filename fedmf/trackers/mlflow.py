"""A callback that records a run in MLflow."""

import contextlib
import os
import pathlib
import re
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from fedmf.files import make_folder
from fedmf.trackers.base import Tracker
from fedmf.training.under_way import Training

# Most parameters of one call, and the longest value of a parameter, that MLflow takes.
_MAX_PARAMETERS = 100
_MAX_VALUE = 6000
_LOCAL_SCHEMES = ("", "file", "sqlite")


class MLflow(Tracker):
    """A callback that records a run in MLflow: `pip install 'fedmf[mlflow]'`.

    Args:
      tracking_uri: MLflow's tracking URI; None for the environment variable MLFLOW_TRACKING_URI
        or, without it, the private folder mlflow beside the run's folder. To look at the runs,
        install the whole of MLflow: `mlflow ui --backend-store-uri sqlite:///runs/mlflow/runs.db`.
      experiment: name of MLflow's experiment.
      covered_only: as of `Tracker`.

    Raises:
      ImportError: MLflow is not installed.
    """

    name = "mlflow"

    def __init__(
        self,
        *,
        tracking_uri: str | None = None,
        experiment: str = "fedmf",
        covered_only: bool | None = None,
    ) -> None:
        super().__init__(covered_only=covered_only)
        try:
            import mlflow
        except ImportError:
            raise ImportError(
                "tracker=mlflow needs MLflow, which is not installed: pip install 'fedmf[mlflow]'"
            ) from None
        self._mlflow = mlflow
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        self._experiment = experiment

    def is_local(self) -> bool:
        """Returns whether the tracking URI is that of a file or a folder."""
        return urllib.parse.urlsplit(self._uri).scheme in _LOCAL_SCHEMES

    def open(self, training: Training, run_id: str | None) -> str:
        """Opens MLflow's run, and returns its id."""
        run_folder = training.folder.path.absolute()
        artifact_location = None
        if not self._uri:
            mlflow_folder = run_folder.parent / "mlflow"
            make_folder(mlflow_folder)
            self._uri = f"sqlite:///{mlflow_folder / 'runs.db'}"
            artifact_location = (mlflow_folder / "artifacts").as_uri()
        with self._refusals():
            self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            if run_id is None:
                experiment_id = self._experiment_id(artifact_location)
                tracked_run = self._client.create_run(experiment_id, run_name=run_folder.name)
                run_id = str(tracked_run.info.run_id)
            else:
                self._client.update_run(run_id, status="RUNNING")
        self._run_id = run_id
        return run_id

    def _experiment_id(self, artifact_location: str | None) -> str:
        """Returns the id of MLflow's experiment, which is created if it does not exist."""
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is not None:
            return str(experiment.experiment_id)
        experiment_id = self._client.create_experiment(
            self._experiment, artifact_location=artifact_location
        )
        return str(experiment_id)

    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Records the parameters of the run."""
        params = [
            self._mlflow.entities.Param(name, str(value)[:_MAX_VALUE])
            for name, value in parameters.items()
        ]
        with self._refusals():
            for start in range(0, len(params), _MAX_PARAMETERS):
                batch = params[start : start + _MAX_PARAMETERS]
                self._client.log_batch(self._run_id, params=batch)

    def log_metrics(self, metrics: Mapping[str, float], t: int) -> None:
        """Records the metrics of round t."""
        milliseconds = int(time.time() * 1000)
        entries = [
            self._mlflow.entities.Metric(re.sub(r"[^\w./ -]", "_", name), value, milliseconds, t)
            for name, value in metrics.items()
        ]
        with self._refusals():
            self._client.log_batch(self._run_id, metrics=entries)

    def log_file(self, path: pathlib.Path, folder: str) -> None:
        """Records a file as an artifact."""
        with self._refusals():
            self._client.log_artifact(self._run_id, str(path), folder or None)

    def close(self, *, is_finished: bool) -> None:
        """Ends MLflow's run."""
        status = "FINISHED" if is_finished else "KILLED"
        with self._refusals():
            self._client.set_terminated(self._run_id, status)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Raises ValueError, in one sentence, if MLflow answers a call of the block by an error."""
        try:
            yield
        except self._mlflow.exceptions.MlflowException as error:
            first_line = str(error).partition("\n")[0]
            raise ValueError(
                f"tracker=mlflow: MLflow refused a call ({first_line}): mend its server or folder "
                "and resume the run, or resume the run without `tracker`"
            ) from error
