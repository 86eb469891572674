"""Callbacks that record a training run in an experiment tracker, such as MLflow."""

from fedmf.trackers.base import Tracker
from fedmf.trackers.mlflow import MLflow
from fedmf.trackers.wandb import WandB

__all__ = ["TRACKERS", "MLflow", "Tracker", "WandB"]

# Trackers by their names, as `fedmf train --tracker` takes them.
TRACKERS: dict[str, type[Tracker]] = {"mlflow": MLflow, "wandb": WandB}
