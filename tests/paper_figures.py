"""Figures printed in the papers, as data. Each is given with the digits printed; a test allows half a unit of the
last one.
"""

import numpy as np

# Denisov et al. 2022, App. H, Table 2: sqrt(loss) of prefix sums under a single participation.
# n -> (Honaker's online estimator, the optimum). FACTS.md has the optimum of n = 256 and 512 to two digits.
DENISOV_TABLE_2 = {256: (74.4, 40.4), 512: (116.5, 62.0), 1024: (180.8, 94.6)}

# Banded paper, App. C, Table 2: n = 2052, prefix sums, matrices scaled to sensitivity 1 under (k = 6, b = 342).
# mechanism -> (sensitivity for k = 1, rmse under (k = 6, b = 342) relative to the best matrix there).
BANDED_TABLE_2 = {"tree full": (0.32, 1.53), "identity": (0.41, 9.63), "banded 342": (0.41, 1.05)}

# Multi-epoch paper, App. H.2: an encoder whose sensitivity for scalars is 1, and contributions of norm 1 in two
# dimensions that reach sqrt(1.1).
VECTOR_COUNTEREXAMPLE = np.array([[2.0, 1.0, 1.0], [1.0, 2.0, -1.0], [1.0, -1.0, 2.0]]) / np.sqrt(24.0)
VECTOR_COUNTEREXAMPLE_INPUTS = np.array([[2.0, 1.0], [2.0, -1.0], [1.0, 2.0]]) / np.sqrt(5.0)
