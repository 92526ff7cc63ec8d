"""``sao``: single-rollout asynchronous optimisation (arXiv 2607.07508). One score on one run is enough for a step.

Send traffic with ``x-reef-session``, and ``POST /reef/report {"session": …, "score": 0…1}`` when a run is over. Each step trains on
``reef.batch_size`` of them with a critic beside the policy, which learns alone in the first ``warm_up_steps``: those steps release nothing.

``reef serve -c recipes/sao/examples/sao/serve.yaml``
"""
