"""Is a candidate better than the head? Tasks, graders, paired trials and the statistical gate.

:mod:`~reef.evaluation.tasks` reads task sets, :mod:`~reef.evaluation.graders` scores outcomes, :mod:`~reef.evaluation.gate` decides from
paired differences without doing any I/O, and :class:`~reef.evaluation.evaluator.Evaluator` brings them together for the learner. Not
here: how an episode runs (``reef.harness.episode``) and what follows from a verdict (``reef.releases``).
"""
