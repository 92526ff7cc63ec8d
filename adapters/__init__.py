"""One module for each coding agent Reef knows, as plugins in the namespace ``reef.adapters``; the contract is ``reef.harness.adapter``."""
