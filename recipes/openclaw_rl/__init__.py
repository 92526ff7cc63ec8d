"""``openclaw_rl``: learning from what came next (arXiv 2603.10165). No reports: a judge reads each answer and what followed it.

What followed is the result of a tool that was called, or what the user said then. The judge, a model behind the gateway, votes +1, 0 or −1,
and may write a hint: what should have been done. The vote trains the answer by PPO; the hint trains it towards the base model that
reads the hint beside the prompt. The last turn of a session has no next state and never trains; it is passed over when the session has been
idle for ``idle_s``. Name a judge that is stronger than the student with ``judge_model``.

``reef serve -c recipes/openclaw_rl/examples/openclaw_rl/serve.yaml``
"""
