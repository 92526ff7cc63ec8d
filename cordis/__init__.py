"""Harness evolution: reports of failed work become candidates, each a git branch with a small edit of the harness.

``recipe`` picks the reports and holds the steps together, ``trajectory`` makes readable accounts of the sessions they quote,
``proposer`` asks for edits (an LLM by default; others by the namespace ``reef.proposers``), ``edits`` is their format and what they do to
a tree, ``workshop`` turns them into a branch. Judging and releasing are not here: the learner does that for every recipe alike.
Called by the learner through the recipe contract, never imported by ``reef``.
"""
