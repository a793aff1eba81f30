"""The recipe: its models, its files, its faults. What other parts import stands here."""

from toolkit.recipe.load import DEFAULT_RECIPE, Entry, Loaded, list_recipes, load_recipe, load_resolved
from toolkit.recipe.schema import Eval, Export, Grpo, Hub, Lora, Model, Recipe, Warmup

__all__ = [
    "DEFAULT_RECIPE",
    "Entry",
    "Eval",
    "Export",
    "Grpo",
    "Hub",
    "Loaded",
    "Lora",
    "Model",
    "Recipe",
    "Warmup",
    "list_recipes",
    "load_recipe",
    "load_resolved",
]
