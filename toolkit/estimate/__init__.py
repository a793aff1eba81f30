"""How much memory a recipe will take, before anything is loaded: terms, common cards, and what to change first.

Time is estimated from what was measured here before (`speeds`). It loads no model and trains nothing.
"""

from toolkit.estimate.advice import Change, changes
from toolkit.estimate.cards import CARDS, on_cards
from toolkit.estimate.shape import Shape, from_config, from_header, published, shape_of
from toolkit.estimate.terms import MARGIN, Estimate, Term, estimate, layer_bytes

__all__ = [
    "CARDS",
    "MARGIN",
    "Change",
    "Estimate",
    "Shape",
    "Term",
    "changes",
    "estimate",
    "from_config",
    "from_header",
    "layer_bytes",
    "on_cards",
    "published",
    "shape_of",
]
