"""A real training that is small enough for tests and for the demo: a CNN on the handwritten digits of scikit-learn."""

from .data import Digits, load_digits
from .loop import Plan, accuracy, train
from .model import DigitsCNN, make_model

__all__ = ["Digits", "DigitsCNN", "Plan", "accuracy", "load_digits", "make_model", "train"]
