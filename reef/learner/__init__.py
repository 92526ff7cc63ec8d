"""The one loop that runs recipes: select → propose → judge → settle.

The contract for method authors is :mod:`reef.learner.recipe`; the loop itself is :mod:`reef.learner.loop`, run as a process of its own by
``python -m reef.learner``, with the judge of canaries (:mod:`reef.learner.canary`) beside it. It reads the experience log and moves heads
through the release controller, and never talks to the gateway except as any other client of its models.
"""
