"""Problems for the search: what is asked, and an exact verifier of what was answered.

A problem is a class with :class:`Problem`'s methods, named on the command line as ``NAME:SIZE``, or ``package.module:Class:SIZE`` for one
of your own.
"""

from recipes.ttt_discover.problems.contract import Problem, Refused, Verified, named

__all__ = ["Problem", "Refused", "Verified", "named"]
