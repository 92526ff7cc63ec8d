"""HTTP: what agents, wrappers and people talk to.

Inference routes are plain ASGI and pass bytes; everything else is a FastAPI app beside them. The gateway appends to experience, reads
heads, and decides nothing: learning lives in the learner, which it never calls.
"""
