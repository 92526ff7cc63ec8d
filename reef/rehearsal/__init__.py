"""A deterministic stand-in for a language model: an OpenAI-compatible server with tool calls and SSE, and nothing learned in it.

What it does with a task depends on what the harness tells it: a small table (``competence``) says what is done wrong by default and
which guidance puts it right, so that a better harness really gives better work. It also plays the proposer by script (``proposer``).
It exists so that the demo, adapter checks and tests run the real coding agents with no key and no GPU, and it never passes itself off
as a model. ``reef serve --upstream rehearsal`` starts it as a process of its own; tests call :func:`reef.rehearsal.app.create_app`.
"""
