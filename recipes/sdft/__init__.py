"""``sdft``: self-distillation from a demonstration (arXiv 2601.19897). What is new is learned, and what was known is kept.

A report brings the demonstration: ``{"session": …, "feedback": {"demonstration": "…"}}``, or in ``metadata``, or as ``demonstrated_by``,
the receipt of a record in which a better upstream answered the same. The model's own answer is what trains: an average of the model's
past that reads the demonstration beside the prompt says, token by token, what it would have said. No score is needed.

``reef serve -c recipes/sdft/examples/sdft/serve.yaml``
"""
