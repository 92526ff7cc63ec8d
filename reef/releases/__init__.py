"""The append-only chain of each scenario, and the only code that moves a head.

:class:`~reef.releases.controller.Controller` is what the gateway and the learner use. One SQL transaction is the commit point of a
release: bytes are stored before it, branches and tags follow it as a mirror for plain git. Not here: how bytes are stored
(``reef.artifacts``) and whether a candidate is better (``reef.evaluation``).
"""
