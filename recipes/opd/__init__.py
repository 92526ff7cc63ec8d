"""``opd``: on-policy distillation. A stronger model that never moves says of each token that was generated how likely it would have been.

No reports are needed: each session that has been idle for ``idle_s`` is an attempt. The ``teacher`` is named as in
``serving.vllm.model`` and has to have the same tokens as the student.

``reef serve -c recipes/opd/examples/opd/serve.yaml``
"""
