"""Training, evaluation and export of PyTorch modules."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch

from fedmf import checks
from fedmf.files import replacement_of
from fedmf.pytorch.client_training import client_setup
from fedmf.pytorch.evaluation import ModuleEvaluator
from fedmf.pytorch.fingerprint import frozen_digest, module_fingerprint
from fedmf.pytorch.module_check import check_module, check_trainable
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import (
    as_array,
    copy_arrays,
    frozen_tensors,
    saved_tensors,
    trained_parameters,
)
from fedmf.runs.config import TrainConfig
from fedmf.training.client_work import ClientWork
from fedmf.training.learner import (
    ClientSettings,
    Evaluate,
    FrozenWeights,
    Machine,
    TaskData,
)
from fedmf.training.model_task import ModelLearner

# Types of real numbers that a saved tensor may have where the model has another of them.
_REAL_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TorchLearner(ModuleFunctions, ModelLearner):
    """An implementation of `Learner` for tasks with a PyTorch module.

    It is made of the functions of the task, which build the model and compute loss and metrics.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (RuntimeError, IndexError)
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """Returns the parameters with gradients that the module has when it is built with this
        seed.
        """
        module = self.build(seed)
        check_module(self.name, module)
        return [as_array(parameter) for parameter in trained_parameters(module).values()]

    def client_work(self, settings: ClientSettings, machine: Machine) -> ClientWork:
        """Returns the object that trains clients and sums their clipped updates."""
        return client_setup.choose_client_work(self, settings, machine)

    def on_workers(self) -> Self:
        """Returns a learner for the workers of a cluster, which has no metrics because workers only
        train.
        """
        return dataclasses.replace(self, metrics={})

    def evaluator(self, settings: ClientSettings, machine: Machine) -> Evaluate:
        """Returns a function that computes the metrics of given weights on given examples."""
        return ModuleEvaluator(self, settings)

    def metric_names(self, task: TaskData) -> list[str]:
        """Returns the names of the metrics; reports show the first one."""
        return [*self.metrics] or ["loss"]

    def check(self, task: TaskData, config: TrainConfig) -> None:
        """Checks that the module can be trained and that the privacy guarantee holds for it."""
        check_trainable(self, task, config)

    def fingerprint(self, seed: int) -> dict[str, str]:
        """Returns texts that change if submodules, loss or initial weights of the module change."""
        return module_fingerprint(self, self.build(seed))

    def check_device(self, device: str) -> None:
        """Checks that the device is "cpu", or "cuda" on a machine that has a GPU."""
        checks.one_of("device", device, ("cpu", "cuda"))
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device='cuda' needs a GPU and a build of PyTorch for it, and torch.cuda finds "
                "none here: use device='cpu'"
            )

    def frozen_weights(self, seed: int) -> FrozenWeights:
        """Returns the number and a digest of the parameters without gradients and the buffers."""
        module = self.build(seed)
        num_frozen = sum(tensor.numel() for tensor in frozen_tensors(module).values())
        return FrozenWeights(num_frozen, frozen_digest(module) if num_frozen else "")

    def all_weights(self, weights: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
        """Returns all tensors of the module's state_dict as arrays, each shared one once."""
        return [as_array(tensor) for tensor in saved_tensors(self._module(weights, seed)).values()]

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """Returns a learner whose modules start from these weights, whatever their seed is."""
        hint = "give all of a module's, as run.starting_weights() does"
        weights = [np.array(weight) for weight in checks.entries("weights", weights, hint=hint)]
        module_shapes = [tuple(tensor.shape) for tensor in saved_tensors(self.build(0)).values()]
        given_shapes = [weight.shape for weight in weights]
        if given_shapes != module_shapes:
            raise ValueError(
                f"the weights have the shapes {given_shapes} and the model of task {self.name!r} "
                f"has {module_shapes}: take the weights of the same model"
            )
        return dataclasses.replace(self, build_model=_StartingFrom(self.build_model, weights))

    def load_weights(self, path: pathlib.Path) -> list[np.ndarray]:
        """Returns all weights of a state_dict that torch.save has written to a .pt file."""
        hint = "name a FILE.pt with the state_dict of a module, or the folder of a run"
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            # PyTorch raises errors of many types for a file that it cannot load.
            raise ValueError(f"PyTorch cannot load it ({type(error).__name__}); {hint}") from error
        module = self.build(0)
        module_names = list(saved_tensors(module))
        if not isinstance(state, Mapping):
            raise ValueError(
                f"it holds a {type(state).__name__}: save module.state_dict() by torch.save"
            )
        missing_names = [name for name in module_names if name not in state]
        unknown_names = [name for name in state if name not in module.state_dict()]
        if missing_names or unknown_names:
            raise ValueError(
                f"its names are not those of the model: {missing_names} are missing, and "
                f"{unknown_names} are unknown; save the state_dict of the same model"
            )
        for name in module_names:
            _check_saved_tensor(name, state[name], saved_tensors(module)[name])
        _check_shared_tensors(module, state)
        return [as_array(state[name]) for name in module_names]

    def model(self, weights: Sequence[np.ndarray], seed: int) -> torch.nn.Module:
        """Returns a module with these weights, in evaluation mode."""
        module = self._module(weights, seed)
        module.eval()
        return module

    def model_summary(self, model: torch.nn.Module) -> dict[str, Any]:
        """Returns the number of parameters of a module."""
        return {"parameters": sum(parameter.numel() for parameter in model.parameters())}

    def export(
        self, weights: Sequence[np.ndarray], seed: int, path: pathlib.Path
    ) -> torch.nn.Module:
        """Saves the state_dict of a module with these weights as FILE.pt. Returns the module."""
        if path.suffix != ".pt":
            raise ValueError(
                f"out={str(path)!r} cannot hold the PyTorch model of task {self.name!r}: name a "
                "FILE.pt"
            )
        module = self.model(weights, seed)
        with replacement_of(path) as temporary_path:
            torch.save(module.state_dict(), temporary_path)
        return module

    def _module(self, weights: Sequence[np.ndarray], seed: int) -> torch.nn.Module:
        """Builds the module with a seed, sets its trained parameters to these, and returns it."""
        module = self.build(seed)
        copy_arrays(weights, list(trained_parameters(module).values()))
        return module


def _check_saved_tensor(name: str, saved_tensor: Any, tensor: torch.Tensor) -> None:
    """Raises a ValueError if an entry of a state_dict is no tensor like that of the module."""
    hint = "save the state_dict of the same model"
    if not isinstance(saved_tensor, torch.Tensor):
        raise ValueError(f"{name!r} in it is a {type(saved_tensor).__name__}: {hint}")
    is_dense = saved_tensor.layout == torch.strided and saved_tensor.device.type == "cpu"
    if saved_tensor.shape != tensor.shape or not is_dense:
        raise ValueError(
            f"{name!r} in it has the shape {tuple(saved_tensor.shape)} and the layout "
            f"{saved_tensor.layout}, and that of the model has {tuple(tensor.shape)}: {hint}"
        )
    has_real_dtypes = {saved_tensor.dtype, tensor.dtype} <= _REAL_DTYPES
    if saved_tensor.dtype != tensor.dtype and not has_real_dtypes:
        raise ValueError(
            f"{name!r} in it is {saved_tensor.dtype}, and that of the model {tensor.dtype}: {hint}"
        )


def _check_shared_tensors(module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Raises a ValueError if a state_dict has different values for names that share a tensor in a
    module.
    """
    first_name_by_id: dict[int, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        first_name = first_name_by_id.setdefault(id(tensor), name)
        if not isinstance(tensor, torch.Tensor) or name not in state:
            continue
        if not np.array_equal(as_array(state[first_name]), as_array(state[name]), equal_nan=True):
            raise ValueError(
                f"{first_name!r} and {name!r} have different values in it and are one parameter of "
                "the model: save the state_dict of the same model"
            )


@dataclasses.dataclass(frozen=True)
class _StartingFrom:
    """A function of a seed that builds a module with the same weights for every seed.

    Attributes:
      build_model: function that builds the module.
      weights: arrays for `saved_tensors` of the module.
    """

    build_model: Callable[[int], torch.nn.Module]
    weights: Sequence[np.ndarray]

    def __call__(self, seed: int) -> torch.nn.Module:
        """Returns the module."""
        module = self.build_model(seed)
        copy_arrays(self.weights, list(saved_tensors(module).values()))
        for array, (name, tensor) in zip(self.weights, saved_tensors(module).items(), strict=True):
            if not np.array_equal(as_array(tensor), array, equal_nan=True):
                raise ValueError(
                    f"{name!r} of the state_dict is a copy of the model's tensor, so that the "
                    "model cannot start from given weights: let its state_dict return the tensors"
                )
        return module
