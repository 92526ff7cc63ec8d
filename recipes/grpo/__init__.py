"""``grpo``: group-relative policy optimisation (arXiv 2402.03300), the control beside SAO. Without a critic: attempts are
compared with each other.

The same prompt has to be answered several times. Attempts belong together whose first prompt is the same, token by token, or whose report
says so with ``metadata.group``. A step takes whole groups of at least ``siblings`` attempts, as many as make ``reef.batch_size``
attempts; a group in which all did equally well says nothing and is passed over.

``reef serve -c recipes/grpo/examples/grpo/serve.yaml``
"""
