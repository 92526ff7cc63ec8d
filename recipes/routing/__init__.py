"""``routing``: which upstream answers, learned from scores and prices.

A contextual bandit. The operator releases a first policy that tries all arms
(`reef release import recipes/routing/examples/routing/policy`): that costs money and quality, so it is a person's decision. From then on
sessions with a report are draws with a known chance. A step fits one ridge model per arm to the first half of its batch and to older draws,
and proposes the policy that follows it but for a share of the sessions that goes on exploring; the second half of the batch judges it, by
inverse propensities (:mod:`reef.evaluation.off_policy`). No model is asked, no trial is run, and nobody is served by a candidate.
"""

from recipes.routing.recipe import RoutingRecipe

__all__ = ["RoutingRecipe"]
