"""Sizes of models and calls for which clients are vectorised."""

from fedmf.training.execution.groups import group_size
from fedmf.training.learner import ClientSettings

# Largest number of examples times number of parameters in one vectorised call, unless it has only
# SLOT_MULTIPLE clients. This limits the memory of the clients' weights and inputs to 128 MiB.
MAX_PRODUCTS = 2**25
# The number of slots (places for clients) in a vectorised call is a multiple of this number.
# Otherwise the processor would compute the last entries by other instructions, which round
# differently.
SLOT_MULTIPLE = 16
# Largest number of slots (places for clients) in a vectorised call. A larger number would save
# little time, and more slots would be empty.
MAX_SLOTS = 64
# Models with at most this many parameters count as small, because dispatching their operations
# takes more time than the arithmetic. Larger models would be slower if each client had its own
# weights.
SMALL_MODEL = 10_000


def slots_per_call(settings: ClientSettings, num_parameters: int) -> int:
    """Returns the number of slots (places for clients) of one vectorised call, given the run's
    settings.
    """
    clients_per_group = group_size(settings.cohort_size, settings.batch_size, num_parameters)
    num_clients = min(clients_per_group, settings.cohort_size)
    max_slots = min(MAX_SLOTS, MAX_PRODUCTS // (settings.batch_size * num_parameters))
    max_slots = max(SLOT_MULTIPLE, max_slots // SLOT_MULTIPLE * SLOT_MULTIPLE)
    num_calls = -(-num_clients // max_slots)
    return -(-num_clients // (num_calls * SLOT_MULTIPLE)) * SLOT_MULTIPLE


def is_small(num_parameters: int) -> bool:
    """Returns whether a model is small, so that clients with any number of steps are vectorised."""
    return num_parameters <= SMALL_MODEL
