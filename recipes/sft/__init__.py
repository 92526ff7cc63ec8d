"""``sft``: supervised fine-tuning on demonstrations, the quickest way to what somebody can show.

A report says what should have been answered, as for ``sdft``: ``{"session": …, "feedback": {"demonstration": "…"}}``, or in ``metadata``,
or as ``demonstrated_by``, the receipt of a record in which a better upstream answered the same. It trains in place of the model's own
answer, behind the very tokens that the engine read. Where what was known before must not be lost, ``sdft`` is the milder one.

A session that another model answered well is a demonstration itself, tool calls and all: a report on it with ``"demonstrates": true`` in
``feedback`` or ``metadata`` has every turn of it learned (:mod:`recipes.sft.recorded`; `examples/pi_tools` teaches a small model so).

``reef serve -c recipes/sft/examples/sft/serve.yaml``
"""
