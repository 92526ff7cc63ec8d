"""``sdpo``: self-distillation from a sibling that succeeded (arXiv 2601.20802). The model learns from what it could do itself.

As with ``grpo`` the same prompt has to be answered several times, and each answer scored. An attempt learns from an average of the model's
own past that is shown, beside the prompt, the answer of another attempt whose score is at least ``success``, and what was said of its own
attempt as ``feedback``. A group without a success is passed over; an attempt that succeeded alone has nobody to learn from.

``reef serve -c recipes/sdpo/examples/sdpo/serve.yaml``
"""
