"""Ray as a place to train: one training over several machines (Ray Train), variants of a recipe side by side (Ray Tune).

What trains is `python -m toolkit`, in processes of its own that Ray's workers start: Unsloth must come first in a process, and
signals reach a main thread only. Ray is optional, and imported inside functions.
"""
