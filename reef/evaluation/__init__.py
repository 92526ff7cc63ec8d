"""Is a candidate better than the head? Tasks, graders, paired trials and the statistical gate.

:mod:`~reef.evaluation.tasks` reads task sets (:mod:`~reef.evaluation.taskset` from YAML, :mod:`~reef.evaluation.harbor` from Harbor's
folders), :mod:`~reef.evaluation.capture` makes tasks from traffic, and :mod:`~reef.evaluation.splits` keeps some of them apart;
:mod:`~reef.evaluation.graders` scores outcomes, and :mod:`~reef.evaluation.checking` tries graders on outcomes whose grade is known.

:mod:`~reef.evaluation.trials` runs pairs, :mod:`~reef.evaluation.gate` decides from their differences without doing any I/O (with the bets
of :mod:`~reef.evaluation.eprocess`, the :mod:`~reef.evaluation.guards` and the sharing out of error in :mod:`~reef.evaluation.spending`),
:mod:`~reef.evaluation.verdicts` writes down what came of it and computes it again, and
:class:`~reef.evaluation.evaluator.Evaluator` brings them together for the learner. Not here: how an episode runs
(``reef.harness.episode``) and what follows from a verdict (``reef.releases``).
"""
