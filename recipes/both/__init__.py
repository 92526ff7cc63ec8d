"""``both``: one scenario whose harness and weights both move, each by a method of its own and each through the gate.

Two recipes take turns on the same traffic. By default Cordis makes harness candidates of what people say went wrong, and ``sft`` trains a
LoRA on what they say should have been answered. Each consumes reports under its own name, so that one report may serve both, and neither
counts it twice. A harness candidate is tried with the head's weights and a LoRA with the head's harness; a release names both, and a
rollback brings back what served together.

``reef serve -c recipes/both/examples/both/serve.yaml``
"""
