"""``selfplay``: the system sets itself tasks, checks them, and learns from those it can sometimes do.

The driver (``python -m recipes.selfplay``) has a proposer model write a task with the data of a checker: an exact answer, a regular
expression or a JSON schema, never code. A proposer that is too small to write JSON is asked by examples (``--plain``). A task counts only
if its checker tells the proposer's good answer from its bad one and from empty talk, and if the head solves it in some of its attempts and
not in all. The attempts at such a task are reported; of the others nothing is learned.

What the reports become is the recipe's: :class:`~recipes.selfplay.recipe.SelfPlayHarness` has Cordis improve the harness on the failed
attempts, :class:`~recipes.selfplay.recipe.SelfPlayWeights` trains weights on the groups. Either way the gate decides on tasks of its own
(``evaluation.tasks``): a system that only had to please its own questions would learn to ask easy ones.

``reef serve -c recipes/selfplay/examples/selfplay/serve.yaml``, then ``python -m recipes.selfplay --rounds 20``.
"""
