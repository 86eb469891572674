"""Whether a metric is defined on the examples that it has seen: Keras gives 0 for the AUC of one
class, and for a mean of nothing.
"""

from typing import Any

import numpy as np
import tensorflow as tf

_keras = tf.keras.metrics
# AUC, and what is read off its curves.
_OF_A_CURVE = (
    _keras.AUC,
    _keras.PrecisionAtRecall,
    _keras.RecallAtPrecision,
    _keras.SensitivityAtSpecificity,
    _keras.SpecificityAtSensitivity,
)
# A variance below this share of the squares is rounding.
_ROUNDING = 1e-6


def is_defined(metric: Any) -> bool:
    """Whether the value of a tf.keras.metrics.Metric follows from what it has counted.

    False for NaN; for what is read off a curve, of examples of one class; for precision, recall and
    F scores that divide 0 by 0; for R2, of labels that are all equal; and for a mean, also of a
    subclass, over nothing.
    """
    if np.isnan(float(metric.result())):
        return False
    if isinstance(metric, _OF_A_CURVE):
        positives = _sum(metric, "true_positives", "false_negatives")
        negatives = _sum(metric, "true_negatives", "false_positives")
        return bool(np.all(positives > 0) and np.all(negatives > 0))
    if isinstance(metric, _keras.Precision):
        return bool(np.all(_sum(metric, "true_positives", "false_positives") > 0))
    if isinstance(metric, _keras.Recall):
        return bool(np.all(_sum(metric, "true_positives", "false_negatives") > 0))
    if isinstance(metric, _keras.FBetaScore):
        return bool(
            np.sum(_sum(metric, "true_positives", "false_positives", "false_negatives")) > 0
        )
    if isinstance(metric, _keras.R2Score):
        squares, total, examples = (
            np.asarray(v) for v in (metric.squared_sum, metric.sum, metric.count)
        )
        return bool(np.all(squares - total**2 / examples > _ROUNDING * squares))
    return not isinstance(metric, _keras.Mean) or float(metric.count) > 0


def _sum(metric: Any, *names: str) -> Any:
    return sum(np.asarray(getattr(metric, name)) for name in names)
