"""Where answers come from.

An upstream takes a request's bytes and gives the provider's own bytes back; it knows addresses, keys, time-outs and model names, and
nothing of scenarios, records or HTTP servers. The gateway calls it.
"""
