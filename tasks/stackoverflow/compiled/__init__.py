"""Local training epoch of the next-word model in C, compiled on each machine at first use.

`next_word.c` is the epoch, `matrix.h` the matrix product; PACKING.md explains how matrices lie in
memory. No other module knows of C.
"""

from fedmf.tasks.stackoverflow.compiled.epoch import compiled_epoch

__all__ = ["compiled_epoch"]
