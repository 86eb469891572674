"""The next-word model's local epoch in C, which the machine's own compiler makes into a library at
first use. Nothing else knows C.

`next_word.c` is the epoch, `matrix.h` the matrix product, PACKING.md explains how
matrices lie in memory.
"""

from fedmf.tasks.stackoverflow.compiled.epoch import compiled_epoch

__all__ = ["compiled_epoch"]
