"""GRPO fine-tuning: a recipe goes in, a proven model comes out. Imports nothing, to start quickly."""

__version__ = "0.1.0"
