"""Several processes that train one model: who each of them is, how they are started, what they tell each other.

Torch's elastic agent starts them (what `torchrun` is), its process groups connect them. Nothing here knows of recipes or models.
"""
