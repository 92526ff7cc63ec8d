"""How records become weights: samples and batches, losses, the torch trainer and its checkpoints.

:mod:`~reef.training.sample` is the vocabulary and :mod:`~reef.training.batches` makes samples of token-exact records, both without
torch; :mod:`~reef.training.losses` are pure functions on tensors. Recipes call the trainer, in a process beside serving. Not here: which
records a recipe picks and what is released (:mod:`reef.learner`), and how weights reach a running engine (:mod:`reef.serving`).
"""
