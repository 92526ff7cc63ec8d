"""``ttt_discover``: learn while searching for one good solution of one hard problem (arXiv 2601.16175).

The recipe is small: the attempts that started from the same point are a group, and the loss prefers the best of a group. The search is the
driver's (``python -m recipes.ttt_discover``): it keeps an archive of past solutions, picks by PUCT which to start from, asks the gateway
for several attempts, scores them with the problem's own verifier and reports the scores. Problems are small plugins
(:mod:`recipes.ttt_discover.problems`); circle packing has an exact certifier and, for comparison, the classical optimiser.

``reef serve -c recipes/ttt_discover/examples/ttt_discover/serve.yaml``, then
``python -m recipes.ttt_discover --problem low_autocorrelation:13 --rounds 50``.
"""
