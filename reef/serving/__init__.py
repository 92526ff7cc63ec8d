"""Where answers come from.

An upstream takes a request's bytes and gives the provider's own bytes back; it knows addresses, keys, time-outs and model names, and
nothing of scenarios, records or HTTP servers. The gateway asks :class:`reef.serving.upstreams.Upstreams` for the route of a request; a
route knows which upstreams to try, in which order, and what to do when one fails. Where an upstream does not speak the caller's dialect,
LiteLLM stands between (:mod:`reef.serving.translation`); it is not even imported where bytes can pass.
"""
